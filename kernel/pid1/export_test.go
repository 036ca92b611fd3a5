package pid1

// LoadModulesOf loads the modules that a file lists.
var LoadModulesOf = loadModules

// CheckInitial returns an error unless a folder is in memory.
var CheckInitial = checkInitial
