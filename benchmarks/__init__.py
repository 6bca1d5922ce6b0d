"""The speed of vit_train here, against other libraries: `python -m benchmarks --help`."""
