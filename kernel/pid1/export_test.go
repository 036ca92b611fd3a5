package pid1

// LoadModulesOf loads the modules that a file lists.
var LoadModulesOf = loadModules
