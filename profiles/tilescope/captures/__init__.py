"""Launches of a person's own process: caught where they are made, written down, made again from what was written.

``recording`` stands where Triton launches and gives each to a ``recorder.Recorder``, which keeps one record a distinct launch.
``code`` writes a kernel with all that it reaches, ``arguments`` and ``contents`` what it was given. ``replay`` makes a
``KernelSpec`` of the records in a folder; every collector works from it. Worker-side and in the person's process only, but for
this file: the rest imports torch and triton.

A folder of records holds, for each kernel function, a folder with ``captured_launches.py`` (the spec, as ``load_spec`` takes
it), ``launches.json`` (``FORMAT``; what it has is said in ``recorder``), the files that the code was read from, and a file for
each content that is kept exactly.
"""

#: Version of ``launches.json``. What another version wrote is refused.
FORMAT = 1
#: The file of a kernel's spec, and of its records.
SPEC_FILE, RECORDS_FILE = "captured_launches.py", "launches.json"
