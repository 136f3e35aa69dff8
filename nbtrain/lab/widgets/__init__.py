"""The widgets of notebooks: the launch form, the live panel, TensorBoard."""
