"""The front end's sources (TypeScript) and their build; no part of the wheel, which has the built bundle."""
