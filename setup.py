"""Metadata of the package; `make` installs the lock requirements.txt."""

import pathlib
import sys

import setuptools

if sys.version_info[:2] != (3, 11):
  # In place of an error of the first dependency that other versions lack.
  sys.exit(
    "tff_shift needs Python 3.11, because TensorFlow Federated 0.87 does; this"
    f" is Python {sys.version.split()[0]}"
  )

_HERE = pathlib.Path(__file__).parent

# What a user of the library needs; bounds and reasons: requirements.in.
_DIRECT = [
  "POT>=0.9.4,<0.10",
  "absl-py>=1.2,<2",
  "dp-accounting>=0.4.3,<0.5",
  "grpcio>=1.46,<2",
  "h5py>=3.9,<4",
  "importlib_resources>=6,<8",
  "jinja2>=3.1,<4",
  "markdown>=3.6,<4",
  "markupsafe>=2.1,<4",
  "matplotlib>=3.8,<3.11",
  "mlxtend>=0.23.1,<0.24",
  "msgspec>=0.20,<0.23",
  "numpy>=1.25,<1.26",
  "pandas>=2.1,<3",
  "pillow>=10",
  "pyarrow<25",
  "pyyaml>=6,<7",
  "scikit-learn>=1.5,<1.6",
  "scipy>=1.9.3,<1.10",
  "tensorflow==2.14.1",
  "tensorflow-datasets==4.9.10",
  "tensorflow-metadata<1.18",
  "tensorflow-privacy==0.9.0",
  "threadpoolctl>=3.1,<4",
  "tqdm>=4.66,<5",
]

# TFF 0.87.0 itself is not here, for no installer could bring it: it asks for
# jaxlib 0.4.14, which is gone (overrides.txt). All else that it asks for is,
# with the jaxlib that there is, so that TFF can be added with --no-deps.
# `tff_shift._util.installed` says so where it is missing.
_OF_TFF = [
  "attrs>=23.1,<24",
  "cachetools>=5.3,<6",
  "dm-tree==0.1.8",
  "google-vizier==0.1.11",
  "googleapis-common-protos==1.61.0",
  "jax==0.4.18",
  "jaxlib==0.4.18",
  "ml-dtypes>=0.2.0,<0.3",
  "portpicker>=1.6,<2",
  "tensorflow-model-optimization==0.7.5",
  "typing-extensions>=4.5.0,<4.6",
]

_BINARIES = {
  name: f"tff_shift.binaries.{name}"
  for name in (
    "dynamic_personalization",
    "evolving",
    "guidance",
    "online_adaptation",
    "predict",
    "report",
    "workers",
  )
}

setuptools.setup(
  name="tff_shift",
  version="0.1.0",
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
  entry_points={
    "console_scripts": [
      f"tff-shift-{name.replace('_', '-')} = {module}:run"
      for name, module in _BINARIES.items()
    ]
  },
  python_requires=">=3.11,<3.12",
  # With the marker, pip on another Python names the version, not the first
  # dependency that cannot be built there.
  install_requires=[
    f'{each}; python_version == "3.11"' for each in _DIRECT + _OF_TFF
  ],
  extras_require={
    "gpu": ["tensorflow[and-cuda]==2.14.1"],
    # tokenizers of the extra text needs huggingface-hub before 1. Not in the
    # lock, which has nothing that downloads models.
    "huggingface": ["datasets>=5,<6", "huggingface-hub<1"],
    "mlflow": ["mlflow-skinny>=2.16,<3.6"],
    # Not in the lock: 60 packages for notebooks only. IPython from 8.18 on
    # needs a newer typing-extensions than TFF allows.
    "notebook": [
      "ipykernel>=6.29,<8",
      "ipython>=8.17,<8.18",
      "jupyterlab>=4.2,<4.6",
      "nbclient>=0.10,<1",
      "nbformat>=5.10,<6",
    ],
    # Not in the lock: drift detectors to compare with. 0.22 needs SciPy 1.14.
    "river": ["river>=0.21.1,<0.22"],
    # Not in the lock, which tests no service. 0.20 needs a newer
    # typing-extensions than TFF allows.
    "wandb": ["wandb>=0.19,<0.20"],
    "text": ["safetensors>=0.5.3,<0.6", "tokenizers>=0.19.1,<0.20"],
  },
)
