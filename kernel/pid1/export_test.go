package pid1

import "time"

// LoadModulesOf loads the modules that a file lists.
var LoadModulesOf = loadModules

// LookForDevices returns what loads the drivers of a file that the devices of a node need.
var LookForDevices = lookForDevices

// ReportLacks returns what logs the firmware files that drivers have not got.
var ReportLacks = reportLacks

// CheckInitial returns an error unless a folder is in memory.
var CheckInitial = checkInitial

// TakeConfig copies a node's configuration from a folder of items into a root.
var TakeConfig = takeConfig

// Records makes records of Linux's log of lines.
type Records = records

// NewRecords makes them for a log.
var NewRecords = newRecords

// Take enters a piece of a stream of lines.
func (r *records) Take(now time.Time, text string) { r.take(now, []byte(text)) }

// ShowsErrors reports whether consoles show errors at some levels of Linux's log.
var ShowsErrors = showsErrors

// The bounds on records, in bytes: so many at once, and so many a second.
const (
	RecordBurst = recordBurst
	RecordRate  = recordRate
)

// MaxLogLine is where they are cut, in bytes.
const MaxLogLine = maxLogLine

// ScreenTime is how long a node stays that could not be set up.
var ScreenTime = screenTime

// ConsoleWords is the parameter of netconsole.
var ConsoleWords = consoleWords

// Listed finds a module in a load order.
var Listed = listed
