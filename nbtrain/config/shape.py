"""The shape of a decoder-only GPT, from which parameters and FLOPs are counted.

A run's model is one Shape (`RunConfig.shape`). The planner also builds Shapes of published runs and of
sizes between them.

    embedding   V h + p h                      word embeddings, learned positions
    layer       h (q + 2 k) + q h              attention: query (width q), key, value (k), projection
                2 h f, gated 3 h f             MLP
                2 norms of h or, with bias, 2 h; with norms of queries and keys 2 of d, or 2 d
    final norm  h or 2 h
    output      V h if it is not tied

With biases each matrix has one more row: q + 2 k, h, f (gated 2 f) and h numbers.

V is the vocabulary size, h the hidden size, p the number of learned positions, q the width of all query
heads, k the width of all key heads, f the width of the MLP, and d the size of one head.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OwnBlock:
    """Parameter counts of a block that layer() in a run's code builds.

    If the blocks differ, the largest block is counted.
    """

    sharded: int
    """Number of parameters that are sharded across the tensor-parallel ranks."""
    whole: int
    """Number of parameters that every tensor-parallel rank has in full."""
    sharded_matrices: int
    """Number of sharded parameters that belong to matrices."""
    whole_matrices: int
    """Number of unsharded parameters that belong to matrices."""
    largest_sharded: int
    """Number of elements in the largest sharded parameter."""
    largest_whole: int
    """Number of elements in the largest unsharded parameter."""
    tensors: int
    """Number of parameter tensors."""

    def on_rank(self, tensor: int) -> int:
        """Return the number of parameters on one of `tensor` tensor-parallel ranks."""
        return self.sharded // tensor + self.whole

    def matrices_on_rank(self, tensor: int) -> int:
        """Return the number of matrix elements on one of `tensor` tensor-parallel ranks."""
        return self.sharded_matrices // tensor + self.whole_matrices


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of one model, named as in Megatron-LM's arguments."""

    num_layers: int
    hidden_size: int
    num_attention_heads: int
    ffn_hidden_size: int
    padded_vocab_size: int
    seq_length: int
    num_query_groups: int
    """Number of key and value heads (arXiv:2305.13245): num_attention_heads without grouped queries."""
    kv_channels: int
    """Size of one head; hidden_size / num_attention_heads in most models."""
    learned_positions: int = 0
    """Number of learned positions. 0 with rotary positions and with ALiBi."""
    gated: bool = False
    """Whether the MLP is gated (SwiGLU or GeGLU) and has three matrices instead of two (arXiv:2002.05202)."""
    rmsnorm: bool = False
    """Whether the norms are RMSNorm, which has no bias."""
    bias: bool = True
    """Whether linear layers have biases."""
    add_qkv_bias: bool = False
    """Whether query, key and value have biases even if `bias` is false."""
    qk_layernorm: bool = False
    """Whether each head's queries and keys are normalized."""
    window_layers: tuple[bool, ...] = ()
    """For each layer, whether queries attend to a sliding window only; () if no layer has a window."""
    window_size: int = 0
    """Number of tokens in the sliding window of a query, including the query's own token."""
    attn_softcap: bool = False
    """Whether attention scores are capped."""
    logit_softcap: bool = False
    """Whether logits are capped."""
    tied: bool = True
    """Whether the output layer shares the word embedding's matrix."""
    parallel_residual: bool = False
    """Whether attention and MLP read the same normalized input (GPT-J, GPT-NeoX)."""
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    own_block: OwnBlock | None = None
    """Parameter counts of a block from the user's layer(), if they are known. The other fields describe
    nbtrain's own block.
    """

    @property
    def window_share(self) -> float:
        """Share of the layers that have a window."""
        return sum(self.window_layers) / self.num_layers

    @property
    def visible_tokens(self) -> float:
        """Mean number of tokens that a query attends to, including its own, over all positions and layers."""
        length, window = self.seq_length, min(self.window_size, self.seq_length)
        whole = (length + 1) / 2
        in_window = window * (1 - (window - 1) / (2 * length)) if window else whole
        return whole + self.window_share * (in_window - whole)

    @property
    def query_width(self) -> int:
        """Width of all query heads together."""
        return self.num_attention_heads * self.kv_channels

    @property
    def kv_width(self) -> int:
        """Width of all key heads together, which is also the width of all value heads."""
        return self.num_query_groups * self.kv_channels

    @property
    def qkv_bias(self) -> bool:
        """Whether query, key and value have biases."""
        return self.bias or self.add_qkv_bias

    @property
    def norm_parameters(self) -> int:
        """Number of parameters of one norm of the hidden states."""
        return self.hidden_size * (1 if self.rmsnorm else 2)

    @property
    def head_norm_parameters(self) -> int:
        """Number of parameters of a layer's norms of queries and keys."""
        return self.qk_layernorm * 2 * self.kv_channels * (1 if self.rmsnorm else 2)

    @property
    def attention_weights(self) -> int:
        """Number of elements in the attention matrices of one layer."""
        return self.hidden_size * (2 * self.query_width + 2 * self.kv_width)

    @property
    def mlp_weights(self) -> int:
        """Number of elements in the MLP's matrices of one layer.

        For a block from the user's layer(), it is the number of elements in all its matrices, minus those of
        nbtrain's attention.
        """
        if self.own_block is not None:
            return max(self.own_block.matrices_on_rank(1) - self.attention_weights, 0)
        return (3 if self.gated else 2) * self.hidden_size * self.ffn_hidden_size

    @property
    def output_weights(self) -> int:
        """Number of elements in the output layer, whether it is tied or not."""
        return self.padded_vocab_size * self.hidden_size
