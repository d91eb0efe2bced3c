"""A random LLaVA with a processor in a folder, and question files in the layout of the hub, for tests of the gpu profile."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
)

from tasks.language_models.random_llama import byte_tokenizer

TEMPLATE = (
    "{% for m in messages %}USER: {% for c in m['content'] %}{% if c['type'] == 'image' %}<image>\n{% else %}{{ c['text'] }}{% endif %}"
    "{% endfor %}{% endfor %} ASSISTANT:"
)


def save_tiny_llava(folder: Path) -> Path:
    """Sixteen image tokens, two decoder layers with two key-value heads."""
    tokenizer = byte_tokenizer(512)
    tokenizer.add_tokens(["<image>"], special_tokens=True)
    image = tokenizer.convert_tokens_to_ids("<image>")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlavaForConditionalGeneration(
            LlavaConfig(
                vision_config=CLIPVisionConfig(
                    image_size=32, patch_size=8, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
                ),
                text_config=LlamaConfig(
                    vocab_size=len(tokenizer),
                    hidden_size=32,
                    intermediate_size=48,
                    num_hidden_layers=2,
                    num_attention_heads=4,
                    num_key_value_heads=2,
                    head_dim=8,
                    max_position_embeddings=1024,
                ),
                image_token_id=image,
                vision_feature_layer=-1,
                image_seq_length=16,
            )
        )
    model.save_pretrained(folder)
    pictures = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    LlavaProcessor(
        image_processor=pictures,
        tokenizer=tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        chat_template=TEMPLATE,
        num_additional_image_tokens=1,
    ).save_pretrained(folder)
    return folder


def picture(seed: int) -> dict[str, object]:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (40, 50, 3), dtype=np.uint8)).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": f"{seed}.png"}


def save_science_qa(folder: Path, rows: int = 4) -> Path:
    """ScienceQA's columns; every third question has no image."""
    table = [
        {
            "image": None if i % 3 == 2 else picture(i),
            "question": f"Which is {i}?",
            "choices": ["this", "that", "neither"][: 2 + i % 2],
            "answer": i % 2,
            "hint": "look" if i == 0 else "",
            "task": "closed choice",
            "grade": "grade2",
            "subject": "natural science",
            "topic": "physics",
            "category": "",
            "skill": "",
            "lecture": "",
            "solution": "",
        }
        for i in range(rows)
    ]
    (folder / "data").mkdir(parents=True)
    for split in ("train", "test"):
        pq.write_table(pa.Table.from_pylist(table), folder / "data" / f"{split}-00000-of-00001-abc.parquet")
    return folder


def save_seed_bench(folder: Path) -> Path:
    """SEED-Bench's columns; the second question is about a video."""
    table = [
        {
            "answer": "C",
            "choice_a": "a",
            "choice_b": "b",
            "choice_c": "c",
            "choice_d": "d",
            "data_id": f"1_{i}",
            "data_type": kind,
            "question": "How many?",
            "question_id": str(i),
            "question_type_id": 1,
            "image": [picture(i)],
            "segment": None,
        }
        for i, kind in enumerate(("image", "video", "image"))
    ]
    (folder / "data").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(table), folder / "data" / "test-00000-of-00001.parquet")
    return folder
