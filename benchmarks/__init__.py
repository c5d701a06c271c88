"""One file per question; `python -m benchmarks.run` answers all of them in one run and writes docs/benchmarks.md."""
