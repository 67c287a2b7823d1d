package core

// group is the transfers of one batch that wait in one flow of one path.
type group struct {
	id         uint64 // Transfer.Group
	path       uint32
	flow       uint8
	head, tail uint32 // transfers, the next one first
	next, prev uint32 // groups of the flow; next alone when free
	chain      uint32 // groups of the same bucket
	served     uint64 // of its turn, as shares are counted
}

// buckets is how many chains the groups are found by.
const buckets = 1 << 12

// bucket is the chain that a group is in. Ids count up, and so do slots of
// paths: neighbours must not share a chain.
func bucket(pi uint32, f uint8, id uint64) uint32 {
	h := (id<<20 ^ uint64(pi)<<3 ^ uint64(f)) * 0x9e3779b97f4a7c15
	return uint32(h >> 52)
}

// groupFor returns the group of an id in a flow, made at the flow's end if none
// of it waits there.
func (s *Shard) groupFor(pi uint32, f uint8, id uint64) uint32 {
	if last := s.paths[pi].flows[f].tail; last != 0 && s.groups[last].id == id {
		return last
	}
	first := &s.buckets[bucket(pi, f, id)]
	for i := *first; i != 0; i = s.groups[i].chain {
		if g := &s.groups[i]; g.id == id && g.path == pi && g.flow == f {
			return i
		}
	}
	i := s.freeGroup
	if i != 0 {
		s.freeGroup = s.groups[i].next
	} else {
		s.groups = append(s.groups, group{})
		i = uint32(len(s.groups) - 1)
	}
	s.groups[i] = group{id: id, path: pi, flow: f, chain: *first}
	*first = i
	s.linkGroup(&s.paths[pi].flows[f], i, false)
	return i
}

// dropGroup forgets a group in which nothing waits any more.
func (s *Shard) dropGroup(f *flow, i uint32) {
	s.unlinkGroup(f, i)
	g := &s.groups[i]
	at := &s.buckets[bucket(g.path, g.flow, g.id)]
	for *at != i {
		at = &s.groups[*at].chain
	}
	*at = g.chain
	g.next, s.freeGroup = s.freeGroup, i
}

// turn notes that a slice of transfer ti was issued: the next transfer of its
// group follows, and when the group has had its turn, the next group.
func (s *Shard) turn(f *flow, ti uint32, cost uint64) {
	t := &s.transfers[ti]
	i := t.queuedIn
	g := &s.groups[i]
	g.served += cost
	if t.again == 0 && t.issued == t.length {
		last := g.head == g.tail
		if s.dequeue(ti); last {
			return
		}
	} else if g.head != g.tail {
		s.part(g, ti)
		s.join(g, ti, false)
	}
	s.rotate(f, i)
}

// rotate puts a group that has had its turn behind the others of its flow.
func (s *Shard) rotate(f *flow, i uint32) {
	if g := &s.groups[i]; g.served >= s.cfg.SmallBytes && f.head != f.tail {
		g.served = 0
		s.unlinkGroup(f, i)
		s.linkGroup(f, i, false)
	}
}

// linkGroup puts group i into a flow, behind all others or before them.
func (s *Shard) linkGroup(f *flow, i uint32, front bool) {
	g := &s.groups[i]
	switch {
	case f.head == 0:
		f.head, f.tail, g.next, g.prev = i, i, 0, 0
	case front:
		g.next, g.prev = f.head, 0
		s.groups[f.head].prev = i
		f.head = i
	default:
		g.next, g.prev = 0, f.tail
		s.groups[f.tail].next = i
		f.tail = i
	}
}

func (s *Shard) unlinkGroup(f *flow, i uint32) {
	g := &s.groups[i]
	if g.prev != 0 {
		s.groups[g.prev].next = g.next
	} else {
		f.head = g.next
	}
	if g.next != 0 {
		s.groups[g.next].prev = g.prev
	} else {
		f.tail = g.prev
	}
}

// join puts transfer ti into a group, behind all others or before them.
func (s *Shard) join(g *group, ti uint32, front bool) {
	t := &s.transfers[ti]
	switch {
	case g.head == 0:
		g.head, g.tail, t.qnext, t.qprev = ti, ti, 0, 0
	case front:
		t.qnext, t.qprev = g.head, 0
		s.transfers[g.head].qprev = ti
		g.head = ti
	default:
		t.qnext, t.qprev = 0, g.tail
		s.transfers[g.tail].qnext = ti
		g.tail = ti
	}
}

// part takes transfer ti out of its group.
func (s *Shard) part(g *group, ti uint32) {
	t := &s.transfers[ti]
	if t.qprev != 0 {
		s.transfers[t.qprev].qnext = t.qnext
	} else {
		g.head = t.qnext
	}
	if t.qnext != 0 {
		s.transfers[t.qnext].qprev = t.qprev
	} else {
		g.tail = t.qprev
	}
}
