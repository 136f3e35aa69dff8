"""Size of a frozen matrix in 4 bits (lora.load_in_4bit; arXiv:2305.14314, section 3).

packed numbers          half a byte for each number
absmax                  4 bytes for each block of 64 numbers, in all 4.5 bits a number
with double             1 byte for each block, 4 bytes for each 256 blocks, and 4 bytes for the mean of
  quantization          a matrix, in all 4.127 bits a number
"""

BLOCK_ELEMENTS = 64
NESTED_BLOCK_ELEMENTS = 256


def four_bit_bytes(elements: int, use_double_quant: bool) -> int:
    """Return the size in bytes of a matrix with `elements` numbers."""
    packed, blocks = -(-elements // 2), -(-elements // BLOCK_ELEMENTS)
    if not use_double_quant:
        return packed + 4 * blocks
    return packed + blocks + 4 * -(-blocks // NESTED_BLOCK_ELEMENTS) + 4
