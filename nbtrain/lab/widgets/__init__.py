"""What a notebook shows: the launch form, the live panel, TensorBoard."""
