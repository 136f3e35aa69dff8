"""What {{...}} shows in the text of an article, by the documented rule of each template."""
