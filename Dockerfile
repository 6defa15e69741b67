# docker build -t tff_shift .                       for the CPU
# docker build -t tff_shift --build-arg GPU=1 .     with CUDA's libraries
# docker run --rm -v "$PWD/runs:/runs" tff_shift    the demo, into ./runs
FROM python:3.13-slim-bookworm

ARG GPU=0
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

WORKDIR /tff_shift
# By itself, so that a change of the code does not install all of it again.
# Without resolving, because TFF runs beside newer releases than it asks for.
COPY requirements.txt ./
# Without kernels for GPUs TensorFlow takes 0.6 GB less.
RUN if [ "$GPU" != 1 ]; then sed -i 's/^tensorflow==/tensorflow-cpu==/' requirements.txt; fi && \
    pip install --no-deps --ignore-requires-python --requirement requirements.txt
RUN if [ "$GPU" = 1 ]; then pip install 'tensorflow[and-cuda]==2.21.0'; fi

COPY . .
RUN pip install --no-deps --no-build-isolation .

WORKDIR /runs
CMD ["tff-shift", "evolving", "--preset=demo", "--output_dir=/runs/demo"]
