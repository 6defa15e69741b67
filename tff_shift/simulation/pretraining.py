"""Pre-training of the global model at the server, before deployment (t = 0).

Fed-ADE, Section 3: every client's model theta_c starts from a global model
theta that was trained at the server on labelled data. The caller chooses the
data; this module trains with early stopping on held-out data, and caches the
result.

Choices:
  * Training: the package's local loop, one epoch at a time, for at most
    `max_epochs`. It stops after `patience` epochs without a smaller
    cross-entropy on the held-out data, and keeps the weights of the best epoch.
  * The optimizer state is reset every epoch, as the clients' is every round:
    Adam's moments cover the current epoch only.
  * No augmentation of the images.
  * In online adaptation: Adam, 1e-3, batches of 32, at most 30 epochs, patience
    5, and one deployed model for all seeds (`--pretraining_epochs`,
    `--pretraining_seed`).

The cache is a folder of .npz files, named by a key of everything that
determines the result (`cache_key`); see `array_cache`.
"""

import dataclasses
import os
import pathlib
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_shift._util import arguments
from tff_shift._util import files
from tff_shift.data import array_files
from tff_shift.data import client_dataset
from tff_shift.data import examples as examples_lib
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models import fingerprint
from tff_shift.models import input_scaling
from tff_shift.models import modes
from tff_shift.models import split_model
from tff_shift.simulation import pretraining_hparams
from tff_shift.simulation.storage import array_cache

# Part of the key: increase it with every change of the training or the file.
FORMAT = 2


# The arrays in a result's file beside the weights.
_NUMBERS = ("validation_accuracy", "num_epochs", "best_epoch")
_OTHER_ARRAYS = ("validation_logits", *_NUMBERS)


# The names of the sets of examples in messages.
_SHOWN = {"train": "training", "validation": "validation", "refit": "refit"}


class Epoch(NamedTuple):
  """The report on an epoch.

  Attributes:
    number: The number of the epoch, from 1.
    training_loss: The mean loss of its batches.
    validation_loss: The mean cross-entropy on the held-out data.
    validation_accuracy: The accuracy on the held-out data, in percent.
  """

  number: int
  training_loss: float
  validation_loss: float
  validation_accuracy: float


class Pretrained(NamedTuple):
  """A pre-trained model and its predictions on the held-out data.

  Attributes:
    weights: The weights of the best epoch, `SplitWeights` of NumPy arrays.
    statistics: The running statistics of batch normalisation after the best
      epoch, NumPy arrays by the names of `SplitModel.statistics`.
    validation_logits: The model's logits, [num_validation, num_classes]
      float32.
    validation_y: The true classes, [num_validation] int32.
    validation_accuracy: The fraction of correct predictions, in percent.
    num_epochs: The number of epochs run.
    best_epoch: The number of the best epoch, from 1; 0 without training, see
      `untrained`.
  """

  weights: split_model.SplitWeights
  statistics: dict[str, np.ndarray]
  validation_logits: np.ndarray
  validation_y: np.ndarray
  validation_accuracy: float
  num_epochs: int
  best_epoch: int


def pretrain(
  model: split_model.SplitModel,
  train: tuple[np.ndarray, np.ndarray],
  validation: tuple[np.ndarray, np.ndarray],
  hparams: pretraining_hparams.PretrainingHParams,
  *,
  seed: int,
  cache_dir: str | os.PathLike[str] | None = None,
  on_epoch: Callable[[Epoch], None] = lambda epoch: None,
  refit: tuple[np.ndarray, np.ndarray] | None = None,
) -> Pretrained:
  """Trains a model, or loads it from the cache.

  Args:
    model: The model; training starts from its initial weights for the seed.
    train: The training data, x [num_examples, ...] of the model's input type
      and y [num_examples] integers (see `examples.checked`).
    validation: The held-out data, in the same form.
    hparams: The hyper-parameters.
    seed: Determines the initial weights and the order of the examples, at least
      0.
    cache_dir: The folder of the cache, created if missing. None: no cache.
    on_epoch: Called after every epoch of the training with early stopping; not
      called for a cached result.
    refit: The examples of a last training, for as many epochs as early stopping
      chose, such as `train` and `validation` together. The weights are its
      own; the predictions on the held-out data stay those of a model that was
      not trained on them. None: there is no such training.

  Returns:
    The pre-trained model.

  Raises:
    ValueError: If a hyper-parameter, the seed or the data are not allowed, or
      if a loss is not finite.
    files.WriteError: If the cache cannot be written.

  Examples:
    >>> from tff_shift.simulation.pretraining_hparams import PretrainingHParams
    >>> model = ts.build_model("mlp", input_shape=(2,), num_classes=2, width=4)
    >>> data = np.float32([[0, 1], [1, 0]] * 4), np.arange(8) % 2
    >>> hparams = PretrainingHParams(max_epochs=1)
    >>> pretrained = ts.pretrain(model, data, data, hparams, seed=0)
    >>> pretrained.num_epochs, pretrained.validation_logits.shape
    (1, (8, 2))
  """
  train, validation = _checked(model, train, validation, hparams)
  if refit is not None:
    (refit,) = _checked_examples(model, {"refit": refit})
  seed = arguments.seed("seed", seed)
  arguments.functions(on_epoch=on_epoch)
  if cache_dir is None:
    return _fit(model, train, validation, hparams, seed, on_epoch, refit)
  key = cache_key(model, train, validation, hparams, seed=seed, refit=refit)
  path = pathlib.Path(cache_dir) / f"pretrained-{key}.npz"
  # Before the training, so that an error costs no epochs.
  with files.writing(path.parent):
    path.parent.mkdir(parents=True, exist_ok=True)
  names = [*tf.nest.flatten(model.weight_names()), *model.statistics]
  arrays = array_cache.load(path, key, [*names, *_OTHER_ARRAYS])
  if arrays is None:
    pretrained = _fit(model, train, validation, hparams, seed, on_epoch, refit)
    array_cache.save(
      path,
      key,
      _by_name(model, pretrained.weights)
      | pretrained.statistics
      | {name: getattr(pretrained, name) for name in _OTHER_ARRAYS},
    )
    return pretrained
  return Pretrained(
    weights=tf.nest.map_structure(arrays.get, model.weight_names()),
    statistics={name: arrays[name] for name in model.statistics},
    validation_logits=arrays["validation_logits"],
    validation_y=validation.y,
    **{name: arrays[name].item() for name in _NUMBERS},
  )


def untrained(
  model: split_model.SplitModel,
  validation: tuple[np.ndarray, np.ndarray],
  *,
  seed: int,
) -> Pretrained:
  """Returns a model with its initial weights, such as those of a file.

  Args:
    model: The model.
    validation: The held-out data, see `pretrain`.
    seed: Determines initial weights that are drawn, at least 0.

  Returns:
    The model and its predictions on the held-out data.

  Raises:
    ValueError: If the seed or the data are not allowed, or if the loss is not
      finite.
  """
  (validation,) = _checked_examples(model, {"validation": validation})
  seed = arguments.seed("seed", seed)
  weights = _initial_weights(model, seed)
  statistics = {
    name: np.array(value, np.float32)
    for name, value in model.statistics.items()
  }

  def evaluate(frozen, weights, statistics, validation):
    bound = model.with_frozen(frozen)
    with modes.with_statistics(statistics):
      logits = evaluation.predict_in_batches(
        lambda x: bound.predict(weights, x), validation.x, model.num_classes
      )
    sums = evaluation.domain_metrics(
      logits, validation.y, tf.shape(validation.y)
    )
    return logits, sums["loss"][0], sums["pooled_accuracy"][0]

  frozen = tf.nest.map_structure(np.asarray, model.frozen)
  given = frozen, weights, statistics, validation
  logits, loss, num_correct = _compiled(evaluate, *given)(*given)
  if not np.isfinite(loss):
    raise ValueError(
      "the loss of the model on the held-out examples is not finite"
      + input_scaling.advice(
        model.input_dtype, model.input_scaling, [validation.x]
      )
    )
  return Pretrained(
    weights=weights,
    statistics=statistics,
    validation_logits=logits,
    validation_y=validation.y,
    validation_accuracy=100 * float(num_correct) / len(validation.y),
    num_epochs=0,
    best_epoch=0,
  )


def cache_key(
  model: split_model.SplitModel,
  train: tuple[np.ndarray, np.ndarray],
  validation: tuple[np.ndarray, np.ndarray],
  hparams: pretraining_hparams.PretrainingHParams,
  *,
  seed: int,
  refit: tuple[np.ndarray, np.ndarray] | None = None,
) -> str:
  """Returns the key of everything that determines the result of `pretrain`.

  These are the model (names and shapes of weights, their initial values, and
  the function itself as a graph, since strides and numbers of groups do not
  show in the weights), all sets of examples, the hyper-parameters, the seed,
  and the versions of TensorFlow and of this module's format.

  Returns:
    A SHA-256 digest of 64 hexadecimal digits, the same in every process.

  Raises:
    ValueError: If a hyper-parameter, the seed or the data are not allowed.
  """
  train, validation = _checked(model, train, validation, hparams)
  seed = arguments.seed("seed", seed)
  initial_weights = _initial_weights(model, seed)
  description = {
    "format": FORMAT,
    "tensorflow": tf.__version__,
    "model": model.name,
    "input_dtype": model.input_dtype.name,
    "input_shape": model.input_shape,
    "num_classes": model.num_classes,
    "function": fingerprint.function_digest(model),
    "initial_weights": {
      name: array_files.digest(weight)
      for name, weight in _by_name(model, initial_weights).items()
    },
    "train": [array_files.digest(array) for array in train],
    "validation": [array_files.digest(array) for array in validation],
    "hparams": dataclasses.asdict(hparams),
    "seed": seed,
  }
  if refit is not None:
    description["refit"] = [array_files.digest(array) for array in refit]
  if model.statistics:
    description["statistics"] = {
      name: array_files.digest(np.asarray(value))
      for name, value in model.statistics.items()
    }
  return array_cache.key(description)


def with_pretrained(
  model: split_model.SplitModel, pretrained: Pretrained
) -> split_model.SplitModel:
  """Makes a model start from pre-trained weights for every seed.

  Args:
    model: The pre-trained model, or one with the same weights.
    pretrained: The result of `pretrain`.

  Returns:
    The model; see `split_model.with_weights`.

  Raises:
    ValueError: If the weights' names or shapes are not the model's.

  Examples:
    >>> from tff_shift.simulation.pretraining_hparams import PretrainingHParams
    >>> model = ts.build_model("mlp", input_shape=(2,), num_classes=2, width=4)
    >>> data = np.float32([[0, 1], [1, 0]] * 4), np.arange(8) % 2
    >>> hparams = PretrainingHParams(max_epochs=1)
    >>> pretrained = ts.pretrain(model, data, data, hparams, seed=0)
    >>> model = ts.with_pretrained(model, pretrained)
    >>> weights = model.initial_weights(np.int32([0, 1]))
    >>> np.array_equal(weights.head[0], pretrained.weights.head[0])
    True
  """
  return split_model.with_weights(
    model, _by_name(model, pretrained.weights) | pretrained.statistics
  )


def _by_name(model, weights) -> dict[str, Any]:
  return dict(
    zip(
      tf.nest.flatten(model.weight_names()),
      tf.nest.flatten(weights),
      strict=True,
    )
  )


def _checked(model, train, validation, hparams) -> list[examples_lib.Examples]:
  """Returns both sets of examples in the model's types, validated."""
  if not isinstance(hparams, pretraining_hparams.PretrainingHParams):
    raise ValueError(
      f"hparams={hparams!r} is not allowed: it must be a PretrainingHParams"
    )
  hyperparameters.validate(hparams)
  return _checked_examples(model, {"train": train, "validation": validation})


def _checked_examples(model, parts) -> list[examples_lib.Examples]:
  """Returns examples in the model's types, validated."""
  for name, given in parts.items():
    if not isinstance(given, list | tuple) or len(given) != 2:
      raise ValueError(
        f"{name} must be a pair of examples and classes, got"
        f" {type(given).__name__}"
      )
  return [
    examples_lib.checked(
      x,
      y,
      f"the {_SHOWN[name]} examples",
      shape=model.input_shape,
      dtype=model.input_dtype.as_numpy_dtype,
      num_classes=model.num_classes,
    )
    for name, (x, y) in parts.items()
  ]


def _compiled(function, *examples):
  """Compiles a function for arrays like the examples, nested structures."""
  specs = tf.nest.map_structure(
    lambda array: tf.TensorSpec(array.shape, array.dtype), examples
  )
  compiled = tf.function(function, autograph=False).get_concrete_function(
    *specs
  )
  return lambda *arrays: tf.nest.map_structure(
    lambda tensor: tensor.numpy(),
    compiled(*map(tf.convert_to_tensor, tf.nest.flatten(arrays))),
  )


def _initial_weights(model, seed: int) -> split_model.SplitWeights:
  words = randomness.server_seed(seed)
  return _compiled(model.initial_weights, words)(words)


def _fit(
  model, train, validation, hparams, seed, on_epoch, refit
) -> Pretrained:
  """Trains with early stopping, and then on the examples of `refit`."""
  trained = _train(model, train, validation, hparams, seed, on_epoch)
  if refit is None:
    return trained
  hparams = dataclasses.replace(
    hparams, max_epochs=trained.best_epoch, patience=trained.best_epoch
  )
  last = _train(
    model, refit, validation, hparams, seed, lambda epoch: None, keeps="last"
  )
  return trained._replace(weights=last.weights, statistics=last.statistics)


def _train(
  model, train, validation, hparams, seed, on_epoch, keeps="best"
) -> Pretrained:
  """Trains with early stopping; keeps the best epoch, or the last one."""
  local_hparams = hyperparameters.LocalHParams(
    batch_size=hparams.batch_size,
    optimizer=hparams.optimizer,
    learning_rate=hparams.learning_rate,
    momentum=hparams.momentum,
    weight_decay=hparams.weight_decay,
  )
  batches_seed = randomness.derive(seed, randomness.Purpose.PRETRAIN)

  def run_epoch(frozen, weights, statistics, number, train, validation):
    # Passed as an argument: they may be too large for a graph constant.
    bound = model.with_frozen(frozen)
    with modes.with_statistics(statistics) as moved:
      result = run_passes(bound, weights, number, train, validation)
      return *result, moved

  def run_passes(bound, weights, number, train, validation):
    data = client_dataset.ClientDataset(
      train.x,
      train.y,
      tf.shape(train.y),
      tf.shape(train.y)[0],
      batches_seed,
    )
    result = local_training.train_on_pool(
      bound.predict,
      weights,
      data,
      local_training.epoch_steps(data, hparams.batch_size),
      randomness.fold(batches_seed, number),
      local_hparams,
    )
    logits = evaluation.predict_in_batches(
      lambda x: bound.predict(result.weights, x),
      validation.x,
      model.num_classes,
    )
    sums = evaluation.domain_metrics(
      logits, validation.y, tf.shape(validation.y)
    )
    return (
      result.weights,
      logits,
      result.loss,
      sums["loss"][0],
      sums["pooled_accuracy"][0],
    )

  weights = _initial_weights(model, seed)
  statistics = {
    name: np.array(value, np.float32)
    for name, value in model.statistics.items()
  }
  best = best_loss = None
  frozen = tf.nest.map_structure(np.asarray, model.frozen)
  arguments = frozen, weights, statistics, np.int32(0), train, validation
  run = _compiled(run_epoch, *arguments)
  for number in range(1, hparams.max_epochs + 1):
    weights, logits, loss, validation_loss_sum, num_correct, statistics = run(
      frozen, weights, statistics, np.int32(number), train, validation
    )
    epoch = Epoch(
      number=number,
      training_loss=float(loss),
      validation_loss=float(validation_loss_sum) / len(validation.y),
      validation_accuracy=100 * float(num_correct) / len(validation.y),
    )
    if not np.isfinite([epoch.training_loss, epoch.validation_loss]).all():
      raise ValueError(
        f"pre-training with learning_rate={hparams.learning_rate} diverges:"
        f" the loss of epoch {number} is not finite; use a smaller"
        " learning_rate"
        + input_scaling.advice(
          model.input_dtype, model.input_scaling, [train.x]
        )
      )
    on_epoch(epoch)
    if best is None or keeps == "last" or epoch.validation_loss < best_loss:
      best = epoch, weights, statistics, logits
      best_loss = epoch.validation_loss
    elif number - best[0].number >= hparams.patience:
      break
  best_epoch, weights, statistics, logits = best
  return Pretrained(
    weights=weights,
    statistics=statistics,
    validation_logits=logits,
    validation_y=validation.y,
    validation_accuracy=best_epoch.validation_accuracy,
    num_epochs=number,
    best_epoch=best_epoch.number,
  )
