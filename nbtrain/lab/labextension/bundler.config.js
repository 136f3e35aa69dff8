// Numbers of modules by their order: by default they come from paths, and every folder would give another bundle.
module.exports = { optimization: { moduleIds: "natural" } };
