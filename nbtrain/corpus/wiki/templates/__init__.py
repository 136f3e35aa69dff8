"""The text that {{...}} shows in an article, by the documented rule of each template."""
