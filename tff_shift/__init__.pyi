# `make index` writes this file.
# ruff: noqa
# fmt: off
from tff_shift.algorithms import build as build_algorithm
from tff_shift.algorithms import hparams as hparams
from tff_shift.algorithms import load as load_algorithm
from tff_shift.algorithms import names as algorithm_names
from tff_shift.algorithms.parts.adaptation import Deployment as Deployment
from tff_shift.data.client_dataset import ClientDataset as ClientDataset
from tff_shift.data import datasets as datasets
from tff_shift.data.from_python import from_arrays as from_arrays
from tff_shift.data.from_python import from_client_data as from_client_data
from tff_shift.data.from_python import from_dataframe as from_dataframe
from tff_shift.data.from_python import from_huggingface as from_huggingface
from tff_shift.data.shifts.dynamic_personalization import load_dynamic_personalization as load_dynamic_personalization
from tff_shift.data.shifts.evolving import assemble_clients as assemble_clients
from tff_shift.data.shifts.evolving import load_evolving as load_evolving
from tff_shift.data.shifts.guidance import load_guidance as load_guidance
from tff_shift.data.shifts.online_adaptation import load_online_adaptation as load_online_adaptation
from tff_shift import execution as execution
from tff_shift.learning.aggregators.factories import build as build_aggregator
from tff_shift.learning.aggregators.server_optimizers import build as build_server_optimizer
from tff_shift.learning.metric import Metric as Metric
from tff_shift.learning.metrics import load as load_metric
from tff_shift.learning.metrics import names as metric_names
from tff_shift.learning.stock_tff.learning_process import as_learning_process as as_learning_process
from tff_shift.models import build as build_model
from tff_shift.models import from_keras as from_keras
from tff_shift.models import names as model_names
from tff_shift.reporting.figures import evaluation_figures as figures
from tff_shift.reporting.read_run import read as read_run
from tff_shift.scenarios.dynamic_personalization.simulation import run as run_dynamic_personalization
from tff_shift.scenarios.evolving.simulation import run as run_evolving
from tff_shift.scenarios.guidance.simulation import run as run_guidance
from tff_shift.scenarios.online_adaptation.simulation import run as run_online_adaptation
from tff_shift.serving.adapter import Adapter as Adapter
from tff_shift.serving.adapter_client import AdapterClient as AdapterClient
from tff_shift.serving.adapter_server import AdapterServer as AdapterServer
from tff_shift.serving.deployed import model as load_model
from tff_shift.serving.predictor import load as load
from tff_shift.simulation.engine.callbacks import Callback as Callback
from tff_shift.simulation.engine.callbacks import LambdaCallback as LambdaCallback
from tff_shift.simulation.engine.early_stopping import EarlyStopping as EarlyStopping
from tff_shift.simulation.engine import participation as participation
from tff_shift.simulation.pretraining import pretrain as pretrain
from tff_shift.simulation.pretraining import with_pretrained as with_pretrained

__all__ = [
  'Adapter',
  'AdapterClient',
  'AdapterServer',
  'Callback',
  'ClientDataset',
  'Deployment',
  'EarlyStopping',
  'LambdaCallback',
  'Metric',
  'algorithm_names',
  'as_learning_process',
  'assemble_clients',
  'build_aggregator',
  'build_algorithm',
  'build_model',
  'build_server_optimizer',
  'datasets',
  'execution',
  'figures',
  'from_arrays',
  'from_client_data',
  'from_dataframe',
  'from_huggingface',
  'from_keras',
  'hparams',
  'load',
  'load_algorithm',
  'load_dynamic_personalization',
  'load_evolving',
  'load_guidance',
  'load_metric',
  'load_model',
  'load_online_adaptation',
  'metric_names',
  'model_names',
  'participation',
  'pretrain',
  'read_run',
  'run_dynamic_personalization',
  'run_evolving',
  'run_guidance',
  'run_online_adaptation',
  'with_pretrained',
]
