package nimble

// For tests of JSON output.
type (
	EngineRow = engineRow
	Figure    = figure
)
