"""Metadata of the package; `make` installs the lock requirements.txt."""

import pathlib
import sys

import setuptools
from setuptools.command import build_py

if not (3, 11) <= sys.version_info[:2] <= (3, 13):
  # In place of an error of the first dependency that other versions lack.
  sys.exit(
    "tff_shift needs Python 3.11, 3.12 or 3.13; this is Python"
    f" {sys.version.split()[0]}"
  )

_HERE = pathlib.Path(__file__).parent

# What a user of the library needs; reasons: requirements.in.
_DIRECT = [
  "POT>=0.9.4,<0.10",
  "absl-py>=1.2,<3",
  "decorator",
  "dp-accounting>=0.6,<0.7",
  "grpcio>=1.46,<2",
  "h5py>=3.9,<4",
  "importlib_resources>=6,<8",
  "jinja2>=3.1,<4",
  "markdown>=3.6,<4",
  "markupsafe>=2.1,<4",
  "matplotlib>=3.8,<4",
  "mlxtend>=0.23.1,<1",
  "msgspec>=0.20,<0.23",
  "numpy>=2,<3",
  "pandas>=2.1,<4",
  "pillow>=10",
  "pyarrow",
  "pyyaml>=6,<7",
  "scikit-learn>=1.5,<2",
  "scipy>=1.13,<2",
  "setuptools",
  "tensorboard",
  "tensorflow==2.21.0",
  "tensorflow-datasets==4.9.10",
  "tensorflow-metadata",
  "tensorflow-probability==0.25.0",
  "tf_keras==2.21.0",
  "threadpoolctl>=3.1,<4",
  "tqdm>=4.66,<5",
]

# TFF 0.87.0 and tensorflow-privacy 0.9.0 themselves are not here, for no
# resolver could bring them: they ask for an older Python, and TFF for older
# releases of most that it needs. What else runs beside them is.
# `python -m tff_shift.install_tff` does, without what they ask for.
_OF_TFF = [
  "attrs>=23.1",
  "cachetools>=5.3",
  "dm-tree>=0.1.8",
  "googleapis-common-protos>=1.61",
  "ml-dtypes>=0.5",
  "packaging>=22",
  "portpicker>=1.6,<2",
  "tensorflow-model-optimization==0.8.1",
  "typing-extensions>=4.6",
]


class BuildWithPth(build_py.build_py):
  """Adds the file with which Python imports tff_shift before TFF.

  TFF could not be imported otherwise: tff_shift/_util/tff_imports.py.
  """

  def run(self):
    """Builds the package and adds the file."""
    super().run()
    self.copy_file("tff_shift.pth", self.build_lib)


setuptools.setup(
  name="tff_shift",
  version="0.2.0",
  description=(
    "Federated learning under distribution shift, as TensorFlow Federated"
    " computations"
  ),
  long_description=(_HERE / "README.md").read_text(encoding="utf-8"),
  long_description_content_type="text/markdown",
  license="Apache-2.0",
  license_files=["LICENSE"],
  classifiers=[
    "Programming Language :: Python :: 3.11",
    "Programming Language :: Python :: 3.12",
    "Programming Language :: Python :: 3.13",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
    "Typing :: Typed",
  ],
  # One package: the presets of `experiments` go into it.
  packages=[
    *setuptools.find_packages(include=["tff_shift*"]),
    "tff_shift.presets",
  ],
  package_dir={"tff_shift.presets": "experiments/presets"},
  package_data={
    "tff_shift": ["__init__.pyi", "_util/index.json", "py.typed"],
    "tff_shift.presets": ["*/*.flags"],
    "tff_shift.reporting.pages": ["templates/*"],
  },
  entry_points={"console_scripts": ["tff-shift = tff_shift.__main__:main"]},
  cmdclass={"build_py": BuildWithPth},
  python_requires=">=3.11,<3.14",
  install_requires=_DIRECT + _OF_TFF,
  extras_require={
    "gpu": ["tensorflow[and-cuda]==2.21.0"],
    "huggingface": ["datasets>=5,<6"],
    "skops": ["skops>=0.14"],
    "mlflow": ["mlflow-skinny>=2.16,<4"],
    # Not in the lock: 60 packages for notebooks only.
    "notebook": [
      "ipykernel>=6.29,<8",
      "ipython>=8.17,<10",
      "jupyterlab>=4.2,<5",
      "nbclient>=0.10,<1",
      "nbformat>=5.10,<6",
    ],
    "river": ["river>=0.21.1,<1"],
    # Not in the lock, which tests no service. From 0.26 on it takes protobuf 7.
    "wandb": ["wandb>=0.26,<1"],
    "text": ["safetensors>=0.5.3,<1", "tokenizers>=0.19.1,<1"],
  },
)
