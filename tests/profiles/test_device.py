"""Devices, their datasheet roofs, versions of software, and the search for ncu."""

import sys
from types import SimpleNamespace

import pytest
import tilescope
from tilescope.hardware import ceilings, device
from tilescope.jobs import versions

TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")


class FakeNvml:
    """An NVML with one GPU, or with whatever the test takes away."""

    class NVMLError(Exception):
        pass

    name, capability, cores = "NVIDIA H200", (9, 0), 16896
    NVML_CLOCK_SM = 1
    down = False
    asked, starts = -1, 0

    def nvmlInit(self):
        if self.down:
            raise self.NVMLError("Driver Not Loaded")
        self.starts += 1

    def nvmlDeviceGetHandleByIndex(self, index):
        self.asked = index
        return index

    nvmlDeviceGetHandleByUUID = nvmlDeviceGetHandleByIndex

    def nvmlDeviceGetClockInfo(self, handle, clock):
        assert clock == self.NVML_CLOCK_SM
        return 1980

    def __getattr__(self, function):
        answers = {
            "nvmlShutdown": None, "nvmlDeviceGetCount": 1, "nvmlDeviceGetName": self.name, "nvmlDeviceGetUUID": "GPU-1234",
            "nvmlDeviceGetCudaComputeCapability": self.capability, "nvmlDeviceGetNumGpuCores": self.cores,
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=150_754_820_096), "nvmlSystemGetDriverVersion": "580.159.04",
        }  # fmt: skip
        if function not in answers:
            raise AttributeError(function)
        return lambda *of: answers[function]


@pytest.fixture
def nvml(monkeypatch):
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(device, "_STARTED", set())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


def test_detect(nvml):
    found = device.detect()
    assert found is not None
    assert (found.name, found.target, found.multiprocessors) == ("NVIDIA H200", "sm_90", 132)
    assert (found.memory_bytes, found.l2_bytes, found.measured) == (150_754_820_096, 62_914_560, True)
    assert found.ceilings == ceilings.datasheet("NVIDIA H200")
    assert device.lock_name() == "GPU-1234"


def test_driver_that_stopped_is_asked_again(nvml):
    assert device.detect() and device.clocks()
    assert nvml.starts == 1
    nvml.nvmlDeviceGetUUID = lambda handle: (_ for _ in ()).throw(nvml.NVMLError("GPU is lost"))
    assert device.uuid() == ""
    assert device.clocks()
    assert nvml.starts == 2


def test_version_of_a_program_is_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("TILESCOPE_CACHE", str(tmp_path / "cache"))
    tool = tmp_path / "ncu"
    tool.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\necho Version 1.2\n")
    tool.chmod(0o755)
    for _ in range(2):
        assert versions.version_text(str(tool)) == "Version 1.2\n"
    versions.known_text.cache_clear()
    assert versions.version_text(str(tool)) == "Version 1.2\n", "kept between processes"
    assert (tmp_path / "asked").read_text().count("asked") == 1
    tool.write_text("#!/bin/sh\necho Version 1.30\n")
    assert versions.version_text(str(tool)) == "Version 1.30\n"
    assert versions.version_text(str(tmp_path / "none")) == ""


def test_an_unlisted_gpu_has_no_datasheet(nvml):
    nvml.name, nvml.capability, nvml.cores = "NVIDIA T4", (7, 5), 2560
    found = device.detect()
    assert found is not None
    assert (found.target, found.multiprocessors, found.l2_bytes, found.ceilings) == ("sm_75", 40, 0, ())


@pytest.mark.parametrize(("visible", "asked"), [("1,0", 1), ("GPU-abc", "GPU-abc")])
def test_visible_devices_are_respected(nvml, monkeypatch, visible, asked):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    device.detect()
    assert nvml.asked == asked


def test_hidden_devices(nvml, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert device.detect() is None
    assert "unset it" in (device.unavailable() or "")


def test_no_driver(nvml):
    nvml.down = True
    assert device.detect() is None
    assert "Driver Not Loaded" in (device.unavailable() or "")
    assert device.lock_name() == "gpu"
    assert "driver" not in versions.versions()
    assert device.clocks() == {}
    nvml.down = False
    assert device.clocks() == {"sm_clock": 1.98e9}


def installed(folder, monkeypatch, **packages):
    """Makes these versions of packages be installed here, before all others."""
    for name, version in packages.items():
        about = folder / "site" / f"{name}-{version}.dist-info"
        about.mkdir(parents=True)
        about.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(folder / "site"))


@pytest.mark.parametrize(("version", "word"), [("2.13.0+cpu", "CPU build"), ("2.13.0+cu130", None)])
def test_torch_must_be_able_to_use_the_gpu(nvml, monkeypatch, tmp_path, version, word):
    installed(tmp_path, monkeypatch, torch=version)
    reason = device.unavailable()
    assert reason is None if word is None else word in (reason or "")


def test_versions_and_ncu(nvml, monkeypatch, tmp_path):
    fake = tmp_path / "ncu"
    fake.write_text("#!/bin/sh\necho 'NVIDIA (R) Nsight Compute'\necho 'Version 2025.3.1.0 (build 36398880)'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert device.find_ncu() == str(fake)
    installed(tmp_path, monkeypatch, **{"liger_kernel": "0.6.2", "nvidia_cublas": "13.1"})
    known = versions.versions()
    assert known["ncu"] == "2025.3.1.0"
    assert known["driver"] == "580.159.04"
    assert known["python"].startswith("3.")
    # The code that runs has its own version; libraries that are compared with have theirs where they are installed.
    assert known["tilescope"] == tilescope.__version__
    assert (known["liger-kernel"], known["cublas"]) == ("0.6.2", "13.1")
    assert "quack-kernels" not in known


def test_ncu_off_the_path_newest_first(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    for version in ("2024.3.2", "2025.10.0", "2025.3.1"):
        place = tmp_path / version
        place.mkdir()
        (place / "ncu").touch(mode=0o755)
    monkeypatch.setattr(device, "NCU_PLACES", (str(tmp_path / "nowhere"), str(tmp_path / "*")))
    assert device.find_ncu() == str(tmp_path / "2025.10.0" / "ncu")


def test_every_target_has_a_device():
    assert ceilings.targets() == TARGETS
    for target in TARGETS:
        known = device.for_target(target)
        assert known.target == target and not known.measured
        assert {"hbm", "fp32", "bf16", "tf32", "int8"} <= {ceiling.name for ceiling in known.ceilings}
        assert all(c.origin == "datasheet" and c.note and c.unit == ceilings.unit(c.name) for c in known.ceilings)
    with pytest.raises(ValueError, match="sm_90"):
        device.for_target("sm_42")


@pytest.mark.parametrize(("name", "bandwidth"), [
    ("NVIDIA H200", 4.8e12), ("NVIDIA GeForce RTX 3090", 0.936e12), ("NVIDIA GeForce RTX 3090 Ti", None),
])  # fmt: skip
def test_datasheets_go_by_the_exact_name(name, bandwidth):
    found = {ceiling.name: ceiling.value for ceiling in ceilings.datasheet(name)}
    assert found.get("hbm") == bandwidth
