# For CPUs:        docker build -t mapush .
# For NVIDIA GPUs: docker build -t mapush --build-arg EXTRA=gpu --build-arg TORCH_INDEX= .
# To train:        docker run --rm --gpus all -v "$PWD/results:/runs/results" mapush train
FROM python:3.12-slim
ARG EXTRA=""
ARG TORCH_INDEX="https://download.pytorch.org/whl/cpu"
# Debian replaces versions, so a pinned one is soon missing.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends libegl1 libgl1 \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/mapush
COPY . .
# torch goes first: then no dependency pulls another build of it.
RUN pip install --no-cache-dir -c constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch \
    && pip install --no-cache-dir -c constraints.txt ".${EXTRA:+[$EXTRA]}"
WORKDIR /runs
ENV MUJOCO_GL=egl
ENTRYPOINT ["mapush"]
CMD ["--help"]
