package pid1

// LoadModulesOf loads the modules that a file lists.
var LoadModulesOf = loadModules

// CheckInitial returns an error unless a folder is in memory.
var CheckInitial = checkInitial

// TakeConfig copies a node's configuration from a folder of items into a root.
var TakeConfig = takeConfig
