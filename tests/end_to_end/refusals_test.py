"""Flags that are refused: exit code 2, one line, nothing written.

Each row has flags, and indented what the line says. What needs a file or a
finished run is refused in the test of its feature.
"""

import pytest

from examples.continual import continual
from experiments import dynamic_regret
from experiments.papers import budget_curves
from tests.fixtures import tables
from tff_shift._util import memory
from tff_shift.binaries import dynamic_personalization
from tff_shift.binaries import evolving
from tff_shift.binaries import guidance
from tff_shift.binaries import online_adaptation
from tff_shift.binaries import workers

_CIRCLE = """
--dataset=circle --num_domains=4 --max_examples_per_domain=90 --num_clients=3
--rounds=2 --local_steps=1 --optimizer=adam --learning_rate=1e-3 --noprogress
"""
_EVOLVING = """
--algorithm=fedavg
    --algorithm=fedavg
    fed_avg, fed_avg_ft
--algorithm=
    --algorithm
    fed_avg
--algorithm=local,local
    --algorithm
    repeated
--learning_rate=fast
    --learning_rate=fast
    a number above 0
--optimizer=sgd,lion
    --optimizer='lion'
    sgd, adam, adamw
--learning_rate=1,1
    --learning_rate=1,1
    duplicates
--participation=0
    --participation=0.0
    at most 1
--rounds=two
    --rounds=two
    int
--rounds=0
    --rounds=0
    at least 1
--mean_of_last=0
    --mean_of_last=0
    at least 1
--evaluate_every=0
    --evaluate_every=0
    at least 1
--num_clients=0
    --num_clients=0
    at least 1
--dirichlet=0
    --dirichlet=0
    above 0, or inf
--test_fraction=1
    --test_fraction=1.0
    below 1
--seeds=0,0
    --seeds=0,0
    duplicates
--selection_seeds=7
    --selection_seeds
    subset of --seeds
--dataset=
    --dataset: it must be set, or left out
--select=target
    --select=target
    last_source
--select=last_source --num_domains=2
    --num_domains=2
    at least 3
--algorithm=fed_avg,fed_evp --num_domains=2
    --num_domains=2
    fed_evp
    at least 3
--algorithm=fed_evolve --select=last_source --num_domains=3
    --num_domains=3
    fed_evolve
    at least 4
--distance=cosine
    --distance
    fed_evolve, fed_evp
--algorithm=fed_avg,memo
    memo without --augmentation=none
    float32 [2]
--algorithm=fed_the --plus
    fed_the with --plus
    float32 [2]
--algorithm=cfed --public_data=digits
    public_data=digits
    does not take images
--algorithm=fed_evolve --distance=l1
    --distance='l1'
    l2, squared_l2, cosine
--num_domains=1
    num_domains
    at least 2
--num_domains=9999 --dataset=rotated_digits
    num_domains
    9999
--num_clients=500
    client
    fewer clients
--angle_step=10
    angle_step
    circle
--executor=cloud
    cloud
    in_process
--dataset=rotated_emnist_letters --data_dir=/nowhere
    /nowhere
    emnist
word
    'word'
    unexpected positional argument
--aggregator=median
    evolving: --aggregator=median: it must be one of mean, robust,
--zeroing
    evolving: --zeroing belongs to --aggregator=robust|secure|compressed, not \
    to --aggregator=mean
--aggregator=dp --tree_restart=2
    evolving: --tree_restart belongs to --aggregator=dp_ftrl, not to
--aggregator=dp_ftrl --clipping=fixed
    evolving: --clipping belongs to --aggregator=robust|secure|compressed|dp, \
    not
--aggregator=robust --clipping_norm=2
    evolving: --clipping_norm belongs to --clipping=fixed
--aggregator=robust --clipping=often
    evolving: --clipping='often' is not allowed: it must be one of adaptive, \
    fixed, none
--aggregator=dp --num_clients=4
    evolving: --noise_multiplier=1 is not allowed with clipping=adaptive and 4 \
    clients per round: it must be below 0.4, or use clipping=fixed
--aggregator=dp --clipping=fixed --client_weighting=num_examples
    evolving: --client_weighting=num_examples of fed_avg is not allowed with \
    aggregator=dp, which ignores weights: it must be uniform
--aggregator=robust --algorithm=local
    evolving: --aggregator=robust is not allowed for local: every client \
    trains its own model
--relabeling=shifted
    --relabeling=shifted
    --concept_drift
--num_concepts=2
    --num_concepts=2
    --concept_drift
--concept_drift=sudden
    concept_drift
    groups
    staggered
--concept_drift=groups --num_concepts=3
    num_concepts must be at most 2 with relabeling=reversed
--concept_drift=staggered --num_domains=3
    num_domains must be at least 4
--stop_after=0
    --stop_after=0: it must be at least 1
--keep=first
    must be one of last, best
--client_sampling=by_los
    of uniform, poisson, in_turn, by_size, by_availability, by_loss; did
--loss_candidates=4
    --loss_candidates belongs to --client_sampling=by_loss, not to
--dropout_rate=1
    --dropout_rate=1.0: it must be at least 0 and below 1
--report_deadline=inf
    =inf: it must be a finite number above 0
--over_selection=1.5
    --over_selection=1.5 has no effect
--num_clients=6 --participation=0.5 --client_sampling=by_loss \
--loss_candidates=2
    loss_candidates=2 is not allowed: it must be an integer at least 3 and
--client_sampling=in_turn
    --client_sampling=in_turn has no effect
--client_sampling=by_availability --aggregator=dp
    for uniform and poisson
--client_sampling=poisson --aggregator=mean
    mean: it must be dp
--client_sampling=poisson --aggregator=dp_ftrl
    dp_ftrl: it must be dp
--client_sampling=poisson --aggregator=secure
    secure: it must be dp
--client_sampling=poisson --aggregator=dp --dropout_rate=0.1
    --dropout_rate is not allowed with --client_sampling=poisson: epsilon
--client_sampling=by_size --aggregator=dp_ftrl
    be in_turn or uniform
--client_sampling=in_turn --aggregator=dp_ftrl --dropout_rate=0.1
    --dropout_rate is not allowed with --aggregator=dp_ftrl and
--client_sampling=by_loss --aggregator=secure
    would see the loss
--server_optimizer=adam
    --server_optimizer must be one of none, fed_avg_m, fed_adagrad, fed_yogi, \
    fed_adam, got 'adam'
--server_optimizer=none --server_momentum=0.9
    --server_momentum belongs to --server_optimizer=fed_avg_m, not to \
    --server_optimizer=none
--server_tau=0.1
    --server_tau belongs to --server_optimizer=fed_adagrad|fed_yogi|fed_adam, \
    not to --server_optimizer=none
--server_optimizer=fed_avg_m --server_beta_1=0.9
    --server_beta_1 belongs to --server_optimizer=fed_yogi|fed_adam, not to \
    --server_optimizer=fed_avg_m
--server_optimizer=fed_adam --server_tau=0
    --server_tau=0.0 is not allowed
--learning_rate=1e-3..1e-1
    --learning_rate=1e-3..1e-1: it must be numbers; a range needs
--search=halving --learning_rate=1e-3..1e-1
    --search=halving: it must be grid or random without
--num_trials=2
    --num_trials=2: it must be left out with --search=grid
--search=random --num_trials=0 --learning_rate=1e-3..1e-1
    --num_trials=0: it must be at least 1
--search=random --learning_rate=0.1..0.01
    it must be a number above 0, or several
--max_states_in_memory=0
    --max_states_in_memory=0
    at least 1
--evaluation_clients=-1
    --evaluation_clients=-1
    at least 0
--evaluation_clients=13
    --evaluation_clients=13
    at most --num_clients
--save_clients=3
    --save_clients=3: it must be none, all, or clients from 0 to 2, without \
    duplicates
--save_clients=-1
    --save_clients=-1: it must be none, all, or
--save_clients=0,0
    --save_clients=0,0: it must be none, all, or
--save_clients=some
    --save_clients=some: it must be none, all, or
--save_clients=
    --save_clients=: it must be none, all, or
--save_clients=all,1
    --save_clients=all,1: it must be none, all, or
--metrics=ec
    --metrics: no metric 'ec'; there are
--metrics=ece --evaluation_clients=1 --aggregator=secure
    --metrics=ece is not allowed with --aggregator=secure: --evaluation_cl
--executor=remote
    --executor=remote needs --workers=
--workers=one:1
    --workers belongs to --executor=remote
--worker_timeout=3
    --worker_timeout belongs to
--executor=remote --workers=one
    must each be host:port
--executor=remote --workers=one:1 --worker_timeout=0
    worker_timeout must be seconds above 0
--executor=remote --workers=one:1 --on_worker_failure=cry
    --on_worker_failure=cry
--executor=remote --workers=one:1 --worker_certificate=nowhere
    worker_certificate: there is no file nowhere
--executor=remote --workers=one:1 --max_concurrent_clients=2
    max_concurrent_clients is a setting of the remote workers
--weights_file=/nowhere.keras
    no weights file '/nowhere.keras'
--label=outcome
    evolving: --label belongs to --dataset=path/to/data.csv or .parquet, not \
    to --dataset=circle
--resume=maybe
    --resume=maybe: it must be true, false or
--preset=demo --rounds=0
    evolving: --rounds
--preset=../guidance/demo
    evolving has no preset
    ; its presets:
--preset
    has no preset ''
"""
# Float32 holds 1e-38 to 3e38.
_EVOLVING_SIZES = """
--input_scaling=standardized --input_mean=1 --input_std=1e-320
    evolving: --input_std=1e-320:
--input_scaling=standardized --input_mean=1 --input_std=1e-40
    evolving: --input_std=1e-40:
--input_scaling=standardized --input_mean=1 --input_std=1e39
    evolving: --input_std=1e39:
--input_scaling=standardized --input_mean=1 --input_std=-0.0
    evolving: --input_std=-0.0:
--input_scaling=standardized --input_std=1 --input_mean=1e39
    evolving: --input_mean=1e39:
--input_scaling=standardized --input_std=1 --input_mean=-1e308
    evolving: --input_mean=-1e308:
--input_scaling=standardized --input_std=1 --input_mean=nan
    evolving: --input_mean=nan:
--batch_size=33
    --batch_size=33: it must be at most 32, the number of
--batch_size=10000000
    --batch_size=10000000 of shape [28, 28, 1]: this would need 29.2 GiB
--batch_size=1000000000
    --batch_size=1000000000 is not allowed: it must be at most 10000000
--batch_size=32 --local_steps=10000000000
    --local_steps=10000000000 is not allowed: it must be at most 10000000
--num_clients=10000000
    whose 20 examples are too few for 10000000 cl
--model=mlp --model_width=10000000
    classes, width=10000000: this would need 87.6 GiB
--algorithm=cfed --public_examples=10000000
    public_examples=10000000: 7.3 GiB of inputs [28, 28, 1]; a graph can
"""
_TITLES = """
--algorithm=memo
    augmentations need images
--algorithm=fed_the --plus
    augmentations need images
--algorithm=cfed --public_data=digits
    it must be uniform
--model=mlp
    takes float32
--input_scaling=standardized
    --input_scaling
--dataset=circle --embedding_width=4
    no option 'embedding_width'
--embedding_width=0
    --embedding_width=0
--dataset=reddit --data_dir=/nowhere
    /nowhere/reddit
--angle_step=10
    angle_step
"""
_ONLINE = """
--algorithm=fed_avg
    --algorithm=fed_avg
    atlas,
    fed_ade,
--shift=linear,cosine
    --shift=linear,cosine:
    bernoulli
    duplicates
--shift_kind=concept
    --shift_kind=concept
    covariate
--corrupted_images=downloaded
    --corrupted_images
    archive
--bernoulli_flip=always
    --bernoulli_flip
    as_printed
--model=cnn --model_width=8
    width
    cnn
--eta_min=1 --eta_max=0.5
    --eta_max=0.5
    eta_min=1.0
--nouse_uncertainty --nouse_representation
    --use_uncertainty=False
    use_representation=False
--eta_min=1e-5,1e-3
    --eta_max=0.0001
    eta_min=0.001
--learning_rate=1e-5
    --learning_rate
    fix_lr
--algorithm=fix_lr --controls
    --controls
    fed_ade
    --algorithm=fix_lr
--controls --compare=rounds --rounds_per_step=2
    --controls
    --compare=rounds
    --rounds_per_step=2 must be 1
--correct_batch_noise --similarity=wasserstein
    --correct_batch_noise=True
    similarity='wasserstein'
--correct_batch_noise --summary=histogram
    summary=softmax
--variant=theirs
    --variant='theirs'
    published, program
--variant=program
    running_statistics=moving
    mini_resnet
--schedules=theirs
    --schedules=theirs
    online_label_shift
--schedules=program --bernoulli_flip=as_printed
    --bernoulli_flip=as_printed
    --schedules=program
--severities=one_to_five
    --severities=one_to_five
    --shift_kind=covariate
--repeat_cohorts --aggregator=dp --client_weighting=uniform
    --repeat_cohorts
    epsilon
--controls --dropout_rate=0.1
    --controls does not apply to --drop
--dataset=cifar10 --data_dir=/nowhere
    /nowhere
    cifar10
--shift_kind=covariate --corrupted_images=archive
    cifar10
    digits
--corrupted_images=archive
    --corrupted_images=archive
    does not apply
    --shift_kind=label
--timesteps=0
    --timesteps=0
    at least 1
--rounds_per_step=0
    --rounds_per_step=0
    at least 1
--samples_per_step=0
    --samples_per_step=0
    at least 1
--initial_examples=0
    --initial_examples=0
    at least 1
--max_pretraining_examples=0
    --max_pretraining_examples=0
    at least 1
--pretraining_epochs=0
    --pretraining_epochs=0
    at least 1
--cache_dir=/proc/self/fdinfo/cache
    /cache: it must be a writable folder
--cache_dir=/dev/null/cache
    --cache_dir
--aggregator=dp --clipping=fixed --client_weighting=num_examples
    client_weighting=num_examples of fed_ade
"""
_ONLINE_SIZES = """
--num_clients=10000000
    --num_clients=10000000 with --samples_per_step=50 and
--samples_per_step=10000000
    with --samples_per_step=10000000 and
--algorithm=fed_poe --max_snapshots=10000000
    fed_poe with max_snapshots=10000000, the state of the server: this
"""
_GUIDANCE = """
--preset=dem
    --preset: guidance has no preset 'dem'; its presets:
    demo
--partition=dirichlet
    partition must be dirichlet_<alpha>
--intensity=huge
    --intensity=huge
--num_clients=0
    --num_clients=0
--num_clients=60
    54
--num_clients=9 --intensity=low
    intensity
--final_rounds=4
    --final_rounds=4
--select=test
    --select=test
--lambda_=1.5
    lambda_=1.5
--lambda_=half
    --lambda_=half: it must be a number at least 0
--lambda_=0.9 --algorithm=fed_rep
    --lambda_ belongs to
--sharing=deep
    no option 'sharing'
--model=lenet --sharing=some
    --sharing=some
--algorithm=fed_ade
    --algorithm=fed_ade
--max_examples=20
    examples
--aggregator=robust
    : --aggregator=robust is not allowed for fed_drm: its guide learns the \
    clients' fractions n_i / N from the mean (Theorem 2.2), which clipping and \
    zeroing change
--metrics=mean_ece
    --metrics: mean_ece needs probabilities
--input_scaling=one
    --input_scaling=one
    minus_one_one
--input_mean=0.5 --input_std=0.5
    --input_mean belongs to --input_scaling=standardized
--input_scaling=standardized --input_mean=0.5
    --input_mean needs --input_std
--input_scaling=standardized --input_std=1 --input_mean=a
    --input_mean=a
    one finite number
    or 3
--input_scaling=standardized --input_std=1 --input_mean=nan
    --input_mean=nan
    one finite number
    or 3
--input_scaling=standardized --input_std=1 --input_mean=1,2
    --input_mean=1,2
    one finite number
    or 3
--input_scaling=standardized --input_mean=1 --input_std=0
    --input_std=0
    one finite number
    or 3
"""
_GUIDANCE_SIZES = """
--num_clients=10000000
    num_clients=10000000: there are 200 examples, and each client must
"""
_DYNAMIC = """
--test_distributions=0.6
    --test_distributions=0.6
--test_distributions=iid,iid
    duplicates
--train_distributions=
    --train_distributions=
--period_size=1
    --period_size=1: it must be at least 2
--period_size=200
    --period_size=200: it must be at most half
--periods_per_distribution=0
    --periods_per_distribution=0
--rest=none
    --rest=none
--representation=mean
    --representation=mean
--representation_size=9
    =9: it must be 64
--representation=pca --representation_size=9
    size must be even for pca
--distance_features=labels
    --distance_features=labels
--threshold_quantile=0
    --threshold_quantile=0
--distance_threshold=1 --threshold_quantile=0.9
    leave one of them out
--apply_update=later
    --apply_update=later
--public_fraction=0.95
    public_fraction
--max_examples=5
    part of digits would be empty
--model=cnn --model_width=5
    channels
--model=cnn --model_width=8 --normalization=batch
    fed_3da does not change the running
--algorithm=local --meta_learning_rate=1
    belongs to fed_3da, p_fed_hn, none of which
--algorithm=fed_ade
    --algorithm=fed_ade
--cache_dir=/dev/null/cache
    --cache_dir=/dev/null/cache
--train_periods=1
    --train_periods=1 belongs to data with domains, not to --dataset=digits
--aggregator=dp --clipping=fixed
    : --aggregator=dp is not allowed for fed_3da: in deployment a client sends \
    the vector r of its data (Section 2.3)
--aggregator=secure --clipping=fixed
    : --aggregator=secure is not allowed for fed_3da: in deployment a client \
    sends the vector r of its data (Section 2.3)
--algorithm=local --aggregator=robust
    : --aggregator=robust is not allowed for local: every client trains its \
    own model
--algorithm=local --server_optimizer=fed_adam
    : --server_optimizer=fed_adam is not allowed for local: every client \
    trains its own model
--algorithm=fed_avg --metrics=ece --aggregator=secure
    secure: each client is measured by itself, so the server would see the
"""
_DYNAMIC_SIZES = """
--num_clients=10000000
    --num_clients=10000000 with --period_size=20: this would need
--batch_size=61
    --batch_size=61: it must be at most 60
--hidden_width=10000000
    fed_3da with hidden_width=10000000, the state of the server: this
--num_hidden=10000000
    --num_hidden=10000000 is not allowed: it must be an integer at least 1
"""
_REGRET = """
--timesteps=16
    --timesteps=16
--timesteps=4,6
    --timesteps=4,6
--timesteps=4,x
    --timesteps=4,x
--seeds=-1
    --seeds=-1
"""
_WORKERS = """
--all_interfaces
    must be set with --executor=in_process only
--certificate=a
    must be set with --executor=in_process only
--executor=in_process --certificate=a
    certificate and certificate_key must be given together
--executor=in_process --certificate=a --certificate_key=b
    certificate_key: there is no file b
--executor=tpu
    --executor
--preset=demo
    workers has no preset 'demo'
    ; its presets: none
--port=-1
    workers: --port=-1: it must be at least 0 and at most 65534
--port=65535
    workers: --port=65535: it must be at least 0 and at most 65534
"""
_CONTINUAL = """
--num_domains=0
    --num_domains=0: it must be at least 1
"""
_CURVES = """
--output_dir=out
    name tables and their folders
demo/digits
    name tables and their folders
demo/digits=there
    --output_dir: it must be set
demo/digit=there --output_dir=out
    demo/digit: unknown table
demo/digits=there --output_dir=out
    there: there is no plan.json
"""
# Flags that come first, and rows.
_TABLES = (
  (evolving, f"{_CIRCLE} --algorithm=fed_avg", _EVOLVING),
  (
    online_adaptation,
    """
    --dataset=digits --model=mlp --timesteps=3 --num_clients=3
    --samples_per_step=10 --initial_examples=20 --model_width=4
    --max_pretraining_examples=200 --algorithm=fed_ade
    """,
    _ONLINE,
  ),
  (
    guidance,
    """
    --dataset=digits --model=mlp --max_examples=400 --num_clients=4 --rounds=3
    --local_steps=2 --batch_size=8 --learning_rate=0.05 --algorithm=fed_drm
    """,
    _GUIDANCE,
  ),
  (dynamic_regret, "--seeds=1 --timesteps=4,16 --output_dir=out", _REGRET),
  (workers, "", _WORKERS),
  (continual, "--num_clients=3 --algorithm=fed_avg", _CONTINUAL),
  (budget_curves, "", _CURVES),
)
_SLOW = (
  (
    evolving,
    """
    --algorithm=fed_avg --dataset=rotated_digits --num_domains=3
    --max_examples_per_domain=20 --num_clients=2
    """,
    _EVOLVING_SIZES,
  ),
  (
    evolving,
    "--dataset=synthetic_titles --num_clients=2 --algorithm=fed_avg",
    _TITLES,
  ),
  (
    online_adaptation,
    "--algorithm=source --dataset=digits --model_width=8",
    _ONLINE_SIZES,
  ),
  (
    guidance,
    """
    --algorithm=fed_avg --dataset=digits --partition=dirichlet_0.3
    --intensity=none --max_examples=200
    """,
    _GUIDANCE_SIZES,
  ),
  (
    dynamic_personalization,
    """
    --dataset=digits --max_examples=600 --num_clients=3 --rounds=2
    --period_size=20 --periods=4 --model=mlp --model_width=4
    --algorithm=fed_3da
    """,
    _DYNAMIC,
  ),
  (
    dynamic_personalization,
    "--algorithm=fed_3da --dataset=digits --num_clients=3 --period_size=20",
    _DYNAMIC_SIZES,
  ),
)


@pytest.mark.parametrize(
  "binary, first, flags, parts",
  [
    pytest.param(
      *(binary, first, *row),
      marks=[pytest.mark.slow] * (text in {table[2] for table in _SLOW}),
      id=f"{binary.__name__.rpartition('.')[2]} {row[0]}",
    )
    for binary, first, text in _TABLES + _SLOW
    for row in tables.rows(text)
  ],
)
def test_wrong_flags_are_refused_in_a_line(
  binary, first, flags, parts, refused, tmp_path, monkeypatch
):
  # Whatever is written to the folder of a cache is seen.
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(memory, "limit", lambda: 4 * 2**30)
  options = {"takes_arguments": True} if binary is budget_curves else {}
  line = refused(binary, [first, flags], **options)
  assert all(part in line for part in parts), line


@pytest.mark.parametrize(
  "binary", [evolving, online_adaptation], ids=lambda each: each.__name__
)
def test_missing_algorithm_names_those_there_are(binary, refused):
  name = "fed_evolve" if binary is evolving else "fed_ade"
  assert name in refused(binary, "--noprogress")
