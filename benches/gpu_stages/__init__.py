"""The stages of ``benches/gpu_session.py``: one file each, run in a process of its own."""
