"""Number of adapter parameters of a run (the section `lora`) on one tensor-parallel rank.

    query_key_value    A [3 r, h] whole, B [(n + 2g) d, r] sharded
    dense              A [r, n d] sharded, B [h, r] whole
    dense_h_to_4h      A [r, h] whole, B [f, r] sharded; two of them if the MLP is gated
    dense_4h_to_h      A [r, f] sharded, B [h, r] whole

r is the rank of the adapters, h the hidden size, n the number of attention heads, g the number of query
groups, d the size of one head and f the width of the MLP. A matrix that is marked "whole" is complete on
every tensor-parallel rank.

With lora.kind: ia3, each block has a vector for keys and values [2 g d] and a vector for the MLP [f], both
sharded.

lora.trainable_token_indices with i token ids adds [i, h], complete on each rank that has the embedding or the
output layer.
"""

from nbtrain.config.schema import RunConfig


def count_adapters(config: RunConfig) -> int:
    """Return the number of parameters of all adapters of the whole model."""
    rows = trained_row_elements(config) * (1 if config.shape.tied else 2)
    return config.model.num_layers * sum(adapter_sizes(config, 1)) + rows


def trained_row_elements(config: RunConfig) -> int:
    """Return the number of elements that lora.trainable_token_indices trains in one matrix.

    The matrix is the embedding or the output layer, of which the rows of these tokens are trained.
    """
    ids = config.lora.trainable_token_indices if config.lora is not None else None
    return len(ids or ()) * config.model.hidden_size


def adapter_sizes(config: RunConfig, tensor: int | None = None) -> tuple[int, ...]:
    """Return the number of elements of each matrix in one block's adapters on one rank, in order.

    () if the run has no adapters. `tensor` is the number of tensor-parallel ranks, by default the run's.
    """
    lora, shape = config.lora, config.shape
    tensor = tensor or config.parallel.tensor_parallel_size
    if lora is None:
        return ()
    if lora.kind == "ia3":
        return 2 * shape.kv_width // tensor, shape.ffn_hidden_size // tensor
    rank, hidden, ffn = lora.rank, shape.hidden_size, shape.ffn_hidden_size
    columns = shape.query_width + 2 * shape.kv_width
    sizes = {
        "query_key_value": (3 * rank * hidden, rank * columns // tensor),
        "dense": (rank * shape.query_width // tensor, rank * hidden),
        "dense_h_to_4h": (rank * hidden, rank * ffn // tensor) * (2 if shape.gated else 1),
        "dense_4h_to_h": (rank * ffn // tensor, rank * hidden),
    }
    return tuple(size for target, found in sizes.items() if target in lora.targets for size in found)


def adapter_activations(config: RunConfig, tensor: int | None = None) -> tuple[int, int]:
    """Return the activations that a block's adapters keep for each token on one rank.

    The result is (number of elements between A and B, number of input elements after dropout). For ia3, the
    first number counts the elements that the vectors multiply. `tensor` is the number of tensor-parallel
    ranks, by default the run's.
    """
    lora, shape, tensor = config.lora, config.shape, tensor or config.parallel.tensor_parallel_size
    if lora is None:
        return 0, 0
    if lora.kind == "ia3":
        # The keys and values, and the MLP's inner activations, each before its ia3 vector multiplies it.
        return (2 * shape.kv_width + shape.ffn_hidden_size) // tensor, 0
    openings = 2 if shape.gated else 1
    # {target: (elements between A and B as a multiple of lora.rank, input elements)}
    kept = {
        "query_key_value": (3, shape.hidden_size),
        "dense": (1, shape.query_width // tensor),
        "dense_h_to_4h": (openings, openings * shape.hidden_size),
        "dense_4h_to_h": (1, shape.ffn_hidden_size // tensor),
    }
    found = [kept[target] for target in lora.targets]
    inputs = sum(width for _, width in found) if lora.dropout else 0
    return lora.rank * sum(count for count, _ in found), inputs
