// Number the modules in their order. The default ids come from paths, so each folder would give a different bundle.
module.exports = { optimization: { moduleIds: "natural" } };
