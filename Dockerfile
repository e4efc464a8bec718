# Targets: gateway; worker, which serves any model; demo, a worker that brings a small real model along.
#
#   docker build --target worker -t headrace-worker .
#   docker build --target worker -t headrace-worker:gpu \
#     --build-arg TORCH_INDEX=https://pypi.org/simple --build-arg PACKAGES="gcc libc6-dev" .

ARG PYTHON=docker.io/library/python:3.12-slim

FROM ${PYTHON} AS base
ENV PATH=/opt/headrace/bin:$PATH PYTHONUNBUFFERED=1
RUN groupadd --gid 10001 headrace \
    && useradd --uid 10001 --gid headrace --home-dir /models --no-create-home --shell /usr/sbin/nologin headrace \
    && install -d -o headrace -g headrace /models

# What is installed is copied into the images; pip and its caches stay behind.
FROM base AS build
RUN python3 -m venv --without-pip /opt/headrace
WORKDIR /build

FROM build AS gateway-build
COPY deploy/docker/requirements.py pyproject.toml ./
RUN python3 requirements.py gateway,traces >requirements.txt
RUN --mount=type=cache,target=/root/.cache/pip pip --python /opt/headrace/bin/python install -r requirements.txt
COPY README.md LICENSE setup.py ./
COPY clients clients
COPY kernels kernels
COPY worker worker
RUN --mount=type=cache,target=/root/.cache/pip pip --python /opt/headrace/bin/python install --no-deps .

FROM build AS torch
# Where PyTorch comes from: its CPU build, or with PyPI's index the one for NVIDIA's GPUs.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/headrace/bin/python install --no-deps --index-url "$TORCH_INDEX" "torch>=2.11"
COPY deploy/docker/requirements.py pyproject.toml ./
# A PyTorch for GPUs brings its own Triton; without a GPU nothing uses it, and it is larger than all the rest.
RUN python3 requirements.py worker,traces triton >requirements.txt
RUN --mount=type=cache,target=/root/.cache/pip pip --python /opt/headrace/bin/python install -r requirements.txt

FROM torch AS worker-build
COPY README.md LICENSE setup.py ./
COPY clients clients
COPY kernels kernels
COPY worker worker
RUN --mount=type=cache,target=/root/.cache/pip pip --python /opt/headrace/bin/python install --no-deps .

# With no more of the worker than converts the model, so that other changes don't convert it again.
FROM torch AS demo-model
RUN python3 requirements.py demo >requirements.txt
RUN --mount=type=cache,target=/root/.cache/pip pip --python /opt/headrace/bin/python install -r requirements.txt
COPY worker/__init__.py headrace/worker/
COPY worker/model/__init__.py headrace/worker/model/
COPY worker/model/load/__init__.py worker/model/load/demo_model.py worker/model/load/gemma3_gguf.py \
    worker/model/load/gguf_file.py headrace/worker/model/load/
RUN HEADRACE_CACHE=/opt python3 -c \
        "from headrace.worker.model.load.demo_model import prepare_demo_model; prepare_demo_model()" \
    && rm -f /opt/models/*.lock && chmod -R a+rX /opt/models

FROM base AS gateway
COPY --from=gateway-build /opt/headrace /opt/headrace
ENV PYTHONDONTWRITEBYTECODE=1 HEADRACE_GATEWAY_HOST=0.0.0.0 HEADRACE_LOG_FORMAT=json
USER 10001:10001
WORKDIR /models
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python3", "-c", "from urllib.request import urlopen; urlopen('http://localhost:8000/healthz', timeout=4)"]
ENTRYPOINT ["headrace"]
CMD ["gateway"]

FROM base AS worker
# Triton compiles its launcher with a C compiler: a worker on a GPU needs "gcc libc6-dev".
ARG PACKAGES=""
RUN if [ -n "$PACKAGES" ]; then \
        apt-get update && apt-get install -y --no-install-recommends $PACKAGES && rm -rf /var/lib/apt/lists/*; \
    fi
COPY --from=worker-build /opt/headrace /opt/headrace
ENV PYTHONDONTWRITEBYTECODE=1 HF_HOME=/models/huggingface HEADRACE_CACHE=/models TRITON_CACHE_DIR=/models/triton \
    HEADRACE_METRICS_HOST=0.0.0.0 HEADRACE_METRICS_PORT=9100 HEADRACE_LOG_FORMAT=json
USER 10001:10001
WORKDIR /models
EXPOSE 9100
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python3", "-c", "from urllib.request import urlopen; urlopen('http://localhost:9100/healthz', timeout=4)"]
ENTRYPOINT ["headrace"]
CMD ["worker"]

FROM worker AS demo
COPY --from=demo-model /opt/models /opt/models
ENV HEADRACE_MODEL=/opt/models/gemma-3-270m
