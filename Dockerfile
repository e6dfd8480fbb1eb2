# Tilescope without Python at hand:
#   docker build -t tilescope . && docker run --rm -p 5006:5006 tilescope
# With a GPU add '--gpus all', and '--cap-add=SYS_ADMIN' for counters.
FROM python:3.12-slim
RUN apt-get update && apt-get install -y --no-install-recommends gcc git libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /tilescope
COPY . .
# A CUDA build of torch is larger: --build-arg TORCH_INDEX=https://pypi.org/simple
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir --index-url $TORCH_INDEX torch && pip install --no-cache-dir .
RUN useradd --create-home user
USER user
WORKDIR /home/user
EXPOSE 5006
# The port is published on purpose. The printed link has the token.
CMD ["tilescope", "serve", "--address", "0.0.0.0", "--origin", "localhost:5006"]
