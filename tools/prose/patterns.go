package main

import "regexp"

// pattern is a phrase that the project's prose avoids, and the way out.
type pattern struct {
	name   string
	refuse *regexp.Regexp
	allow  *regexp.Regexp // matches that are not refused; nil: none
	advice string
}

// patterns holds the phrases that the check refuses. Each row has examples in TestPatterns.
var patterns = []pattern{
	{
		name:   "person",
		refuse: regexp.MustCompile(`(?i)\b(who|whoever|whom|nobody|somebody|everybody|anybody)\b`),
		allow:  regexp.MustCompile(`(?i)\b(users?|operators?|authors?|people|readers?|reviewers?) who\b`),
		advice: "name the goroutine, caller, process or CPU",
	},
	{
		name:   "told",
		refuse: regexp.MustCompile(`(?i)\b(tells?|told|telling|hears?|heard|hearing)\b`),
		advice: "use send, receive, report, notify or register; a predicate \"reports whether\"",
	},
	{
		name:   "causation",
		refuse: regexp.MustCompile(`(?i)\b(has|have|had|having) (it|them|itself|everything|each|all|Linux|serve|QEMU|apt|Go|(the|a|an|its|their|his|one) [\w-]+) (be|do|go|run|tell|take|send|give|make|start|stop|fail|read|write|wait|put|get|come|know|say|forget|see|handle|keep|count)\b`),
		advice: "use a verb: \"opens the tracepoints\", not \"has Linux be ready\"",
	},
	{
		name:   "that of",
		refuse: regexp.MustCompile(`(?i)\b(that|those) of\b`),
		advice: "repeat the noun, or use a possessive",
	},
	{
		name:   "what-clause",
		refuse: regexp.MustCompile(`(?i)\bwhat (is|are|there|has|have|had|can|cannot|may|must|comes|came|goes|went|else|becomes|became|remains)\b`),
		advice: "name the thing: input, the table, stale extensions",
	},
	{
		name:   "of which",
		refuse: regexp.MustCompile(`(?i)\b(of|for|behind|beside) which\b`),
		advice: "write two sentences",
	},
	{
		name:   "is to be",
		refuse: regexp.MustCompile(`(?i)\b((is|are|was|were) (not )?to be|no more)\b`),
		allow:  regexp.MustCompile(`(?i)\bno more than\b`),
		advice: "use must, or no longer",
	},
	{
		name:   "is no",
		refuse: regexp.MustCompile(`(?i)\b(is|are|was|were) no\b`),
		allow:  regexp.MustCompile(`(?i)\bthere (is|are|was|were) no\b|\b(is|are|was|were) no (longer|more than|less than|\w+er)\b`),
		advice: "write \"is not a\"",
	},
	{
		name:   "filler",
		refuse: regexp.MustCompile(`(?i)\b(anew|at last|as ever|meanwhile|lest|by itself|by themselves|all the same)\b`),
		advice: "delete it, or use again, finally, while or alone",
	},
	{
		name:   "ordinal",
		refuse: regexp.MustCompile(`(?i)\b(the|at|on|in) \d+\. [a-z]`),
		advice: "write \"boot 2\", not \"the 2. boot\"",
	},
	{
		name:   "caption",
		refuse: regexp.MustCompile(`(?i)\b(beside each other|beside other work|looks of \d)\b`),
		advice: "state the conditions as a caption, or delete them",
	},
	{
		name:   "failed to",
		refuse: regexp.MustCompile(`(?i)\bfailed to\b`),
		advice: "write operation, object, cause, way out",
	},
}

// find returns the patterns that refuse a text.
func find(text string) []pattern {
	var found []pattern
	for _, p := range patterns {
		if p.refuse.MatchString(text) && (p.allow == nil || p.refuse.MatchString(p.allow.ReplaceAllString(text, ""))) {
			found = append(found, p)
		}
	}
	return found
}
