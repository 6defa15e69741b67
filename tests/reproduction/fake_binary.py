"""Stands for a binary: the same files and exit codes, and no computation.

What it measures is a function of algorithm, column, rate and seed. Environment:

    FAKE_FAILS   the algorithm that fails
    FAKE_WAITS   the algorithm that writes a row and then waits for a signal
    FAKE_HELD    a file of one number: so often its folder seems to be held
"""

import os
import pathlib
import signal
import sys

from tff_shift.reporting import summary
from tff_shift.simulation.storage import results


def flags():
  found = {}
  for argument in sys.argv[1:]:
    name, _, value = argument.removeprefix("--").partition("=")
    found[name] = value
  return found


def value(algorithm, dirichlet, rate, seed):
  of_column = 1 + min(2.0, float(dirichlet)) / 10
  return of_column * len(algorithm) + 10 * float(rate) + int(seed)


def main():
  given = flags()
  folder = pathlib.Path(given["output_dir"])
  algorithm = given["algorithm"]
  held = os.environ.get("FAKE_HELD")
  if held:
    left = int(pathlib.Path(held).read_text())
    pathlib.Path(held).write_text(str(left - 1))
    if left:
      sys.exit(f"a run is still going on in {folder}; wait for its end")
  is_new = not (folder / "metrics.csv").exists()
  if is_new == ("resume" in given):
    sys.exit("--resume is missing, or there is nothing to resume")
  folder.mkdir(parents=True, exist_ok=True)
  with open(folder / "starts", "a") as file:
    file.write("x")
  if is_new:
    (folder / "metrics.csv").write_text(
      "held_out,seed,round,learning_rate,client_accuracy,server_accuracy\n"
    )
  if algorithm == os.environ.get("FAKE_WAITS"):

    def interrupted(*_):
      (folder / "interrupted").touch()
      sys.exit(130)

    signal.signal(signal.SIGINT, interrupted)
    (folder / "waits").touch()
    while True:
      signal.pause()
  if algorithm == os.environ.get("FAKE_FAILS"):
    print("first line", file=sys.stderr)
    sys.exit("evolving: it is broken")
  rates = given["learning_rate"].split(",")
  seeds = given["seeds"].split(",")
  rule = "last_source" if len(rates) > 1 else "none"
  chosen = rates[-1]
  measured = {}
  with open(folder / "metrics.csv", "a") as file:
    for seed in seeds:
      for name in ("client_accuracy", "server_accuracy"):
        measured.setdefault(name, []).append(
          value(algorithm, given["dirichlet"], chosen, seed)
        )
      file.write(f"target,{seed},5,{float(chosen)!r},1.5,2.5\n")
      file.write(f"last_source,{seed},5,{float(chosen)!r},9,9\n")
  run_folder = results.RunFolder(folder)
  run_folder.write_summary(
    [
      summary.RunSummary(
        algorithm=algorithm,
        dataset="circle",
        setting={"selection": rule, "learning_rate": float(chosen)},
        metrics_by_seed={
          seed: {name: values[place] for name, values in measured.items()}
          for place, seed in enumerate(seeds)
        },
        rounds=5,
        seconds_per_round=0.5,
        num_diverged=[0] * len(seeds),
        scores={f"rate {rate}": float(rate) for rate in rates},
      ).to_record()
    ]
  )
  run_folder.write_config(given)


if __name__ == "__main__":
  main()
