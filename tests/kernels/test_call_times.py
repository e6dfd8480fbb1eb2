"""The benchmark of calls' CPU times."""

from benchmarks import call_times


def test_call_times_are_a_row_for_each_call(monkeypatch, capsys):
    monkeypatch.setenv("TILESCOPE_USE_TRITON", "0")
    call_times.main(["--calls", "1", "--rounds", "1", "--device", "cpu"])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[3:]]
    names = [operation.name for operation in call_times.OPERATIONS]
    assert [row[0].strip("| ") for row in rows] == [name for name in names for _ in range(2)]
    assert all(float(value.strip("| ")) > 0 for row in rows for value in row[2:])
