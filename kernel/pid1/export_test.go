package pid1

// LoadModulesOf loads the modules that a file lists.
var LoadModulesOf = loadModules

// LoadDriversOf loads the drivers of a file that the devices of a node need.
var LoadDriversOf = loadDrivers

// CheckInitial returns an error unless a folder is in memory.
var CheckInitial = checkInitial

// TakeConfig copies a node's configuration from a folder of items into a root.
var TakeConfig = takeConfig

// CopyLines enters lines into a log.
var CopyLines = copyLines

// MaxLogLine is where they are cut, in bytes.
const MaxLogLine = maxLogLine

// ConsoleWords is the parameter of netconsole.
var ConsoleWords = consoleWords

// Listed finds a module in a load order.
var Listed = listed
