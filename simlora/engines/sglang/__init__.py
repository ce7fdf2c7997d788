"""SGLang: prompts first, slots that count the base model, retraction."""
