"""Captures launches in a user's process, writes them to a folder, and makes them again from there.

``recording`` hooks Triton's launches and passes each to a ``recorder.Recorder``, which keeps one record for each distinct launch.
``execution.kernel_code`` converts a kernel's code to data, ``arguments`` and ``contents`` its arguments. ``replay`` makes a
``KernelSpec`` of the records in a folder, which every collector can run. All modules but this one import torch and triton:
they run in the user's process and in workers.

A folder of records has a subfolder for each kernel function. It holds ``captured_launches.py`` (the spec, for ``load_spec``),
``launches.json`` (described in ``recorder``), the source files, a file for each piece of memory whose contents are kept, and the
interpreter's artefact of each launch that was counted.
"""

#: Version of ``launches.json``. Other versions are refused.
FORMAT = 1
#: The files of a kernel's spec, of its records, and of the interpreter's artefact of the launch of a number.
SPEC_FILE, RECORDS_FILE, COUNTED_FILE = "captured_launches.py", "launches.json", "counted-{}.json.gz"
