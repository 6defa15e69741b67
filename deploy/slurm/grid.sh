#!/bin/bash
# Runs a line of a file of `reproduce --print_jobs` in each task of an array:
#
#   sbatch --array=1-$(wc -l < jobs.txt) deploy/slurm/grid.sh jobs.txt
#
# A task that is preempted, loses its node, or nears its time limit is queued
# again, and its job resumes from its last checkpoint.
#SBATCH --job-name=tff_shift
#SBATCH --cpus-per-task=4
#SBATCH --mem=16G
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=tff_shift_%A_%a.log
#SBATCH --signal=B:USR1@120
set -u
line=$(sed -n "${SLURM_ARRAY_TASK_ID}p" "$1")
[ -n "$line" ] || { echo "$1 has no line $SLURM_ARRAY_TASK_ID" >&2; exit 2; }

# In the background, because bash handles a signal only between commands.
sh -c "exec $line" &
job=$!

stop() {
  kill -TERM "$job"
  wait "$job"
}

requeue() {
  stop
  code=$?
  # It may have ended in the meantime.
  [ "$code" -eq 143 ] || exit "$code"
  scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
  exit
}

trap requeue USR1
trap 'stop; exit' TERM
wait "$job"
