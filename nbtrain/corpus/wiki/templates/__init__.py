"""The text that templates ({{...}}) show in an article, by the documented rule of each template."""
