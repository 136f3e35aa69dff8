"""The GPT model: layers, loss and initialization. It knows neither file paths nor DeepSpeed's settings."""
