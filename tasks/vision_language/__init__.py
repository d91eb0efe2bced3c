"""Small vision-language models, and questions about images made of real data."""
