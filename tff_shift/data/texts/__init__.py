"""Text: vocabulary, tokenizers, files."""
