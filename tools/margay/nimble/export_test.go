package nimble

// For tests of what is printed as JSON.
type (
	EngineRow = engineRow
	Figure    = figure
)
