"""Trains with FedDRM's authors' program; run by `benchmarks.fed_drm_program`.

  python benchmarks/fed_drm_rounds.py settings.json

Needs PyTorch, torchvision and FedLab, and not this package. With "clients" in
the settings, only partitions the images, and writes which client has which.
Else prints one line of JSON: for each round the system and average accuracy.
"""

import json
import os
import sys

import numpy as np
import torch
from omegaconf import OmegaConf
from PIL import Image


class Images(torch.utils.data.Dataset):
  """A part of CIFAR-10 in the place of torchvision's data set."""

  def __init__(self, path: str, split: str):
    with np.load(path) as arrays:
      self._x, self._y = arrays[f"{split}_x"], arrays[f"{split}_y"]

  def __len__(self):
    return len(self._y)

  def __getitem__(self, index):
    return Image.fromarray(self._x[index]), int(self._y[index])


def main() -> None:
  """Trains as settings.json says."""
  with open(sys.argv[1], encoding="utf-8") as file:
    settings = json.load(file)
  # The program prints; standard output is for the result.
  output, sys.stdout = sys.stdout, sys.stderr
  os.chdir(settings["program"])
  sys.path.insert(0, os.getcwd())
  from utils import dataset
  from utils import utils

  cfg = OmegaConf.merge(
    OmegaConf.load("configs/feddrm.yaml"), settings["config"]
  )
  torch.set_num_threads(1)
  utils.create_path(cfg)
  utils.seed_everything(cfg.seed)
  dataset.CIFAR10 = lambda root, train, download: Images(
    settings["images"], "train" if train else "test"
  )
  # It only draws a figure.
  dataset.show_imgs = lambda *_: None
  if not settings["crop"]:
    dataset.T.RandomResizedCrop = lambda *_, **__: lambda image: image
  loaders = dataset.load_dataset(cfg)
  if "clients" in settings:
    np.savez(
      settings["clients"],
      **{
        f"{split}_{client}": loader.dataset.idxs
        for split, of_clients in zip(
          ("train", "test"), loaders[:2], strict=True
        )
        for client, loader in enumerate(of_clients)
      },
    )
    return
  with open(os.devnull, "w", encoding="utf-8") as log:
    algorithm = utils.select_algorithm(cfg)(cfg, *loaders, log)
    algorithm.train()
  record = {
    name: [100 * float(each) for each in algorithm.record[name]]
    for name in ("sys_acc", "avg_acc")
  }
  print(json.dumps(record), file=output)


if __name__ == "__main__":
  main()
