"""Where the names of `import tff_shift as ts` come from."""

_SCENARIOS = "tff_shift.scenarios"
_SHIFTS = "tff_shift.data.shifts"

# By name: a module, and the name in it, or None for the module itself.
NAMES: dict[str, tuple[str, str | None]] = {
  # Algorithms.
  "algorithm_names": ("tff_shift.algorithms", "names"),
  "as_learning_process": (
    "tff_shift.learning.stock_tff.learning_process",
    "as_learning_process",
  ),
  "build_aggregator": ("tff_shift.learning.aggregators.factories", "build"),
  "build_algorithm": ("tff_shift.algorithms", "build"),
  "build_server_optimizer": (
    "tff_shift.learning.aggregators.server_optimizers",
    "build",
  ),
  "hparams": ("tff_shift.algorithms", "hparams"),
  "load_algorithm": ("tff_shift.algorithms", "load"),
  # Metrics.
  "Metric": ("tff_shift.learning.metric", "Metric"),
  "load_metric": ("tff_shift.learning.metrics", "load"),
  "metric_names": ("tff_shift.learning.metrics", "names"),
  # Models.
  "build_model": ("tff_shift.models", "build"),
  "from_keras": ("tff_shift.models", "from_keras"),
  "model_names": ("tff_shift.models", "names"),
  "pretrain": ("tff_shift.simulation.pretraining", "pretrain"),
  "with_pretrained": ("tff_shift.simulation.pretraining", "with_pretrained"),
  # Data.
  "ClientDataset": ("tff_shift.data.client_dataset", "ClientDataset"),
  "assemble_clients": (f"{_SHIFTS}.evolving", "assemble_clients"),
  "datasets": ("tff_shift.data.datasets", None),
  "from_arrays": ("tff_shift.data.from_python", "from_arrays"),
  "from_client_data": ("tff_shift.data.from_python", "from_client_data"),
  "from_dataframe": ("tff_shift.data.from_python", "from_dataframe"),
  "from_huggingface": ("tff_shift.data.from_python", "from_huggingface"),
  "load_dynamic_personalization": (
    f"{_SHIFTS}.dynamic_personalization",
    "load_dynamic_personalization",
  ),
  "load_evolving": (f"{_SHIFTS}.evolving", "load_evolving"),
  "load_guidance": (f"{_SHIFTS}.guidance", "load_guidance"),
  "load_online_adaptation": (
    f"{_SHIFTS}.online_adaptation",
    "load_online_adaptation",
  ),
  # Figures.
  "figures": ("tff_shift.reporting.figures.evaluation_figures", None),
  # Runs.
  "Callback": ("tff_shift.simulation.engine.callbacks", "Callback"),
  "EarlyStopping": (
    "tff_shift.simulation.engine.early_stopping",
    "EarlyStopping",
  ),
  "LambdaCallback": ("tff_shift.simulation.engine.callbacks", "LambdaCallback"),
  "execution": ("tff_shift.execution", None),
  "participation": ("tff_shift.simulation.engine.participation", None),
  "run_dynamic_personalization": (
    f"{_SCENARIOS}.dynamic_personalization.simulation",
    "run",
  ),
  "run_evolving": (f"{_SCENARIOS}.evolving.simulation", "run"),
  "run_guidance": (f"{_SCENARIOS}.guidance.simulation", "run"),
  "run_online_adaptation": (
    f"{_SCENARIOS}.online_adaptation.simulation",
    "run",
  ),
  "read_run": ("tff_shift.reporting.read_run", "read"),
  # Saved models, and models that adapt.
  "Adapter": ("tff_shift.serving.adapter", "Adapter"),
  "AdapterClient": ("tff_shift.serving.adapter_client", "AdapterClient"),
  "AdapterServer": ("tff_shift.serving.adapter_server", "AdapterServer"),
  "Deployment": ("tff_shift.algorithms.parts.adaptation", "Deployment"),
  "load_model": ("tff_shift.serving.deployed", "model"),
  "load": ("tff_shift.serving.predictor", "load"),
}
