"""Sources of the front end (TypeScript) and their build; the wheel contains only the built bundle."""
