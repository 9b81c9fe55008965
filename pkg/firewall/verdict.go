package firewall

// verdict is what a rule does with every packet.
type verdict int

const (
	// conditional rules do not decide on every packet; nothing is known of them.
	conditional verdict = iota
	accepts
	drops
	returns
	jumps
	gotos
)

// step is what is known of a rule. chain is the target of a jump or goto.
type step struct {
	verdict verdict
	chain   string
}

// evaluator finds out what becomes of every packet.
type evaluator struct {
	// chain returns the rules of a chain that another one jumps to.
	chain func(name string) ([]step, error)
	// known are the results for chains, so that each is read once. A chain that is
	// being evaluated counts as one that returns: the kernel allows no loops.
	known map[string]verdict
}

func newEvaluator(chain func(string) ([]step, error)) *evaluator {
	return &evaluator{chain, map[string]verdict{}}
}

// decides returns the first rule that accepts or drops every packet that reaches it,
// and which of both it does. If there is none it returns the number of rules and the
// policy.
func (e *evaluator) decides(steps []step, policy verdict) (at int, v verdict, err error) {
	for i, s := range steps {
		switch s.verdict {
		case conditional:
		case accepts, drops:
			return i, s.verdict, nil
		case returns:
			return i, policy, nil
		case jumps, gotos:
			v, err := e.decidesChain(s.chain)
			if err != nil {
				return 0, 0, err
			}
			switch {
			case v != returns:
				return i, v, nil
			case s.verdict == gotos:
				return i, policy, nil
			}
		}
	}
	return len(steps), policy, nil
}

// decidesChain says what becomes of every packet in a chain that others jump to.
func (e *evaluator) decidesChain(chain string) (verdict, error) {
	if v, ok := e.known[chain]; ok {
		return v, nil
	}
	e.known[chain] = returns
	steps, err := e.chain(chain)
	if err != nil {
		return 0, err
	}
	_, v, err := e.decides(steps, returns)
	e.known[chain] = v
	return v, err
}
