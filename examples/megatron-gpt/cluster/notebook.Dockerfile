# One image for the notebook and for every pod that trains. Built from the root of the repository:
#   docker build -f examples/megatron-gpt/cluster/notebook.Dockerfile -t registry.example.com/nbtrain:0.1.0 .
# The base has torch and CUDA; constraints.txt pins the same torch, so that pip takes no second one.
FROM pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime

# openssh-server and pdsh: DeepSpeedJob and MPIJob reach their workers by ssh. openmpi-bin: MPIJob's mpirun.
# g++ and ninja-build: DeepSpeed's CPU optimizer for offloading.
RUN apt-get update \
    && apt-get install -y --no-install-recommends openssh-server pdsh openmpi-bin g++ ninja-build git \
    && rm -rf /var/lib/apt/lists/* \
    && mkdir -p /run/sshd
# The operators mount one key into all pods of a job, readable by their group; the pods' host keys are new each time.
RUN echo "StrictModes no" > /etc/ssh/sshd_config.d/nbtrain.conf \
    && printf "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n" \
       > /etc/ssh/ssh_config.d/nbtrain.conf

COPY constraints.txt /tmp/constraints.txt
COPY dist/nbtrain-*.whl /tmp/
# boto3: TensorBoard's reader of s3://.
RUN wheel="$(ls /tmp/nbtrain-*.whl)" \
    && pip install --no-cache-dir -c /tmp/constraints.txt "${wheel}[data,k8s]" boto3 \
    && rm -f /tmp/nbtrain-*.whl /tmp/constraints.txt

# The volume is mounted here; `nbtrain init` puts notebooks and run YAMLs on it.
ENV NBTRAIN_WORKSPACE=/workspace
WORKDIR /workspace

CMD ["jupyter", "lab", "--ip=0.0.0.0", "--port=8888", "--no-browser", "--allow-root", "--ServerApp.root_dir=/workspace"]
