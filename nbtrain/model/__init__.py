"""The GPT: layer list, loss, initialization; knows no path and no DeepSpeed key."""
