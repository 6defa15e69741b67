"""Metadata of the package; `make` installs the lock requirements.txt."""

import pathlib

import setuptools

_HERE = pathlib.Path(__file__).parent

setuptools.setup(
  name="tff_shift",
  version="0.1.0",
  description=(
    "Federated learning under distribution shift, as TensorFlow Federated"
    " computations"
  ),
  long_description=(_HERE / "README.md").read_text(encoding="utf-8"),
  long_description_content_type="text/markdown",
  packages=setuptools.find_packages(include=["tff_shift*", "experiments*"]),
  package_data={"experiments": ["presets/*/*.flags"]},
  python_requires=">=3.11,<3.12",
  # What a user of the library needs; bounds and reasons: requirements.in.
  # pip alone cannot resolve these, see overrides.txt.
  install_requires=[
    "POT>=0.9.4,<0.10",
    "absl-py>=1.2,<2",
    "dp-accounting>=0.4.3,<0.5",
    "grpcio>=1.46,<2",
    "matplotlib>=3.8,<3.11",
    "numpy~=1.25",
    "scikit-learn>=1.5,<1.6",
    "tensorflow==2.14.1",
    "tensorflow-datasets==4.9.10",
    "tensorflow-federated==0.87.0",
    "threadpoolctl>=3.1,<4",
    "tqdm>=4.66,<5",
  ],
  extras_require={
    "gpu": ["tensorflow[and-cuda]==2.14.1"],
    "mlflow": ["mlflow-skinny>=2.16,<3.6"],
  },
)
