"""Stands for a binary: the same files and exit codes, and no computation.

What it measures is a function of algorithm, column, rate and seed. Environment:

    FAKE_FAILS   the algorithm that fails
    FAKE_WAITS   the algorithm that writes a row and then waits for a signal
"""

import os
import pathlib
import signal
import statistics
import sys

from tff_shift.simulation.storage import results
from tff_shift.simulation.storage import run_records


def flags():
  pairs = (argument.partition("=") for argument in sys.argv[1:])
  return {name.removeprefix("--"): value for name, _, value in pairs}


def value(algorithm, dirichlet, rate, seed):
  of_column = 1 + min(2.0, float(dirichlet)) / 10
  return of_column * len(algorithm) + 10 * float(rate) + int(seed)


def main():
  given = flags()
  folder = pathlib.Path(given["output_dir"])
  algorithm = given["algorithm"]
  run_folder = results.RunFolder(folder)
  if given["resume"] != "auto":
    sys.exit("--resume=auto is missing")
  if run_folder.is_done(given):
    return
  is_new = not run_folder.has_run()
  folder.mkdir(parents=True, exist_ok=True)
  with open(folder / "starts", "a") as file:
    file.write("x")
  if is_new:
    run_folder.write_config(given)
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
  judged = rates if "all_settings" in given else [chosen]
  measured = {rate: {} for rate in judged}
  with open(folder / "metrics.csv", "a") as file:
    for seed in seeds:
      for name in ("client_accuracy", "server_accuracy"):
        for rate in judged:
          measured[rate].setdefault(name, []).append(
            value(algorithm, given["dirichlet"], rate, seed)
          )
      file.write(f"target,{seed},5,{float(chosen)!r},1.5,2.5\n")
      file.write(f"last_source,{seed},5,{float(chosen)!r},9,9\n")

  def entry(name, selection, measured, scores=None, **setting):
    return run_records.Entry(
      algorithm=name,
      dataset="circle",
      setting={"selection": selection} | setting,
      metrics={
        metric: run_records.Metric(
          mean=statistics.mean(values), std=0.0, seeds=tuple(values)
        )
        for metric, values in measured.items()
      },
      rounds=5,
      seconds_per_round=0.5,
      num_diverged=(0,) * len(seeds),
      scores=scores or {},
    )

  entries = [
    entry(
      algorithm,
      rule if rate == chosen else "none",
      measured[rate],
      {f"rate {each}": float(each) for each in rates},
      learning_rate=float(rate),
    )
    for rate in judged
  ]
  if "bounds" in given:
    # Bounds are of the selected setting, and not selected themselves.
    entries += [
      entry(bound, "none", {"client_accuracy": [accuracy] * len(seeds)})
      for bound, accuracy in (("majority_class", 10.0), ("pooled", 90.0))
    ]
  run_folder.write_summary(entries)
  run_folder.write_done(given)


if __name__ == "__main__":
  main()
