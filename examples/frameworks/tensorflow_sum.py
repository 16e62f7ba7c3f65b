"""Every worker adds its number plus one, over all of them, with TensorFlow:
muster run --env PATH --framework tensorflow --gpus 4 --nodes 2 -- python tensorflow_sum.py

One worker runs on each node, and sees all of its devices; TF_CONFIG names them all.
"""

# ruff: noqa: INP001, T201 - a program for people to run and read, no part of the package

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else of TensorFlow's
task = strategy.cluster_resolver.task_id


@tf.function
def add() -> tf.Tensor:
    """One sum over all replicas."""

    def replica() -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(task + 1.0))

    return strategy.run(replica)


total = strategy.experimental_local_results(add())[0].numpy()
print(f"tensorflow: worker {task} of {strategy.num_replicas_in_sync}, the sum is {total:.0f}", flush=True)
